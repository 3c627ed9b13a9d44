package cniexec

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/internal/disk"
	"cnibox/rtnl"
)

// writeReport writes a file for a bug report: what this host is, the configurations, the links,
// what is attached, and the complaints. Names, addresses that are public, and MAC addresses
// are replaced, each by the same word everywhere.
func (d *doctor) writeReport(file string) error {
	var out strings.Builder
	section := func(title string) { fmt.Fprintf(&out, "\n== %s\n", title) }
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return os.NewSyscallError("uname", err)
	}
	fmt.Fprintf(&out, "== cnibox %s\nLinux %s %s\n", applet.Version, unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Machine[:]))
	section("findings")
	out.WriteString(d.text())
	for _, text := range d.untested {
		fmt.Fprintf(&out, "not tested: %s\n", text)
	}
	section("networks")
	for _, n := range d.networks {
		fmt.Fprintf(&out, "%s: %s, %s\n", n.name, strings.Join(n.conf.types(), ", "), plural(len(n.attached), "attachment"))
		if n.list != nil {
			fmt.Fprintf(&out, "%s\n", bytes.TrimSpace(n.list.From.Doc))
		}
	}
	section("attachments")
	for _, a := range d.inv.entries {
		fmt.Fprintf(&out, "%s %s %v %s %s %s\n", a.Attachment(), a.runtime(), a.addresses(), a.hostLink, a.state, strings.Join(a.faults, "; "))
	}
	section("links")
	if d.inv.links != nil {
		names := map[uint32]string{}
		for _, l := range d.inv.links.all {
			names[l.Index] = l.Name
		}
		for _, l := range d.inv.links.all {
			fmt.Fprintf(&out, "%s %s\n", linkLine(&l, names), l.MAC)
		}
	}
	section("settings")
	for _, key := range append(forwarding[:], "net/bridge/bridge-nf-call-iptables", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter") {
		if value, err := rtnl.Host().Sysctl(key); err == nil {
			fmt.Fprintf(&out, "%s = %s\n", strings.ReplaceAll(key, "/", "."), value)
		}
	}
	text := d.redactor(unix.ByteSliceToString(uts.Nodename[:])).redact(out.String())
	return disk.Replace(file, file+".new", []byte(text), 0)
}

// A redactor replaces words. The same word is replaced by the same one.
type redactor struct {
	words map[string]string
	names []string // that are to be replaced, the longest first
	count map[string]int
}

// redactor returns what replaces the names of this host and of what is attached.
func (d *doctor) redactor(host string) *redactor {
	r := &redactor{words: map[string]string{}, count: map[string]int{}}
	name := func(kind, word string) {
		if len(word) > 2 && r.words[word] == "" {
			r.words[word] = r.next(kind)
			r.names = append(r.names, word)
		}
	}
	name("host", host)
	for _, a := range d.inv.entries {
		name("container", a.ContainerID)
		name("netns", a.NetNSPath())
		for _, arg := range a.Args {
			if arg[0] == "K8S_POD_NAME" || arg[0] == "K8S_POD_NAMESPACE" {
				name("pod", arg[1])
			}
		}
	}
	slices.SortFunc(r.names, func(a, b string) int { return len(b) - len(a) })
	return r
}

// next numbers the words of a kind.
func (r *redactor) next(kind string) string {
	r.count[kind]++
	return fmt.Sprintf("%s-%d", kind, r.count[kind])
}

// redact replaces what is known, MAC addresses, and IP addresses that are public.
func (r *redactor) redact(text string) string {
	for _, name := range r.names {
		text = strings.ReplaceAll(text, name, r.words[name])
	}
	var out strings.Builder
	isWord := func(c rune) bool {
		return unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune(".:/-_", c)
	}
	for len(text) > 0 {
		begin := strings.IndexFunc(text, isWord)
		if begin < 0 {
			break
		}
		out.WriteString(text[:begin])
		text = text[begin:]
		end := strings.IndexFunc(text, func(c rune) bool { return !isWord(c) })
		if end < 0 {
			end = len(text)
		}
		word := strings.TrimRight(text[:end], ".:")
		out.WriteString(r.word(word) + text[len(word):end])
		text = text[end:]
	}
	return out.String() + text
}

// word is a word without what is not to be known.
func (r *redactor) word(word string) string {
	kind := ""
	addr, length, _ := strings.Cut(word, "/")
	if ip, err := netip.ParseAddr(addr); err == nil && public(ip) {
		kind, word = "address", addr
	} else if mac, err := net.ParseMAC(word); err == nil && len(mac) == 6 && !bytes.Equal(mac, make([]byte, 6)) {
		kind, length = "mac", ""
	} else {
		return word
	}
	if r.words[word] == "" {
		r.words[word] = r.next(kind)
	}
	if length != "" {
		return r.words[word] + "/" + length
	}
	return r.words[word]
}

// public reports whether an address is one of the Internet.
func public(ip netip.Addr) bool {
	shared := netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !shared.Contains(ip)
}
