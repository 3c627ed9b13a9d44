package doctor

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

// Report returns the text for a bug report: facts of this host, the configurations, the links,
// the attachments, and the findings. Names, public IP addresses and MAC addresses are replaced,
// each by the same word everywhere.
func (d *Doctor) Report() (string, error) {
	var out strings.Builder
	section := func(title string) { fmt.Fprintf(&out, "\n== %s\n", title) }
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", os.NewSyscallError("uname", err)
	}
	fmt.Fprintf(&out, "== cnibox %s\nLinux %s %s\n", applet.Version, unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Machine[:]))
	section("findings")
	out.WriteString(d.Text())
	for _, text := range d.Untested {
		fmt.Fprintf(&out, "not tested: %s\n", text)
	}
	section("configuration")
	for _, f := range d.linted {
		fmt.Fprintln(&out, f)
	}
	section("networks")
	for _, n := range d.examined {
		fmt.Fprintf(&out, "%s: %s, %s\n", n.Name, strings.Join(n.Conf.Types(), ", "), tty.Plural(len(n.Attached), "attachment"))
		if n.list != nil {
			fmt.Fprintf(&out, "%s\n", bytes.TrimSpace(n.list.From.Doc))
		}
	}
	section("attachments")
	for _, a := range d.inv.Entries {
		fmt.Fprintf(&out, "%s %s %v %s %s\n", a.Attachment(), a.Runtime(), a.Addresses(), a.HostLink, a.StateText())
	}
	section("links")
	if d.inv.Links != nil {
		names := map[uint32]string{}
		for _, l := range d.inv.Links.All {
			names[l.Index] = l.Name
		}
		for _, l := range d.inv.Links.All {
			fmt.Fprintf(&out, "%s %s\n", inventory.LinkLine(&l, names), l.MAC)
		}
	}
	section("settings")
	for _, key := range append(inventory.Forwarding[:], "net/bridge/bridge-nf-call-iptables", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter") {
		if value, err := netns.Host().Sysctl(key); err == nil {
			fmt.Fprintf(&out, "%s = %s\n", strings.ReplaceAll(key, "/", "."), value)
		}
	}
	text := d.redactor(unix.ByteSliceToString(uts.Nodename[:])).redact(out.String())
	return spec.PrintableLines(text), nil
}

// A redactor replaces words, equal words by the same one.
type redactor struct {
	words map[string]string
	names []string // names to replace, the longest first
	count map[string]int
}

// redactor returns a redactor for the names of this host and its attachments.
func (d *Doctor) redactor(host string) *redactor {
	r := &redactor{words: map[string]string{}, count: map[string]int{}}
	name := func(kind, word string) {
		if len(word) > 2 && r.words[word] == "" {
			r.words[word] = r.next(kind)
			r.names = append(r.names, word)
		}
	}
	name("host", host)
	name("host", strings.Split(host, ".")[0])
	for _, a := range d.inv.Entries {
		name("container", a.ContainerID)
		name("container", a.Name())
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

// next returns the next word of a kind, with a number.
func (r *redactor) next(kind string) string {
	r.count[kind]++
	return fmt.Sprintf("%s-%d", kind, r.count[kind])
}

// redact replaces known names, MAC addresses, and public IP addresses.
func (r *redactor) redact(text string) string {
	for _, name := range r.names {
		text = strings.ReplaceAll(text, name, r.words[name])
	}
	const mac, ip4 = `([[:xdigit:]]{2}[:-]){5}[[:xdigit:]]{2}|([[:xdigit:]]{4}\.){2}[[:xdigit:]]{4}`, `[0-9]{1,3}(\.[0-9]{1,3}){3}`
	const ip6 = `[[:xdigit:]]{0,4}(:[[:xdigit:]]{0,4}){2,7}(\.[0-9]{1,3}){0,3}`
	return regexp.MustCompile(mac+"|"+ip4+"|"+ip6).ReplaceAllStringFunc(text, r.word)
}

// word returns the replacement of an address; a private address is not replaced.
func (r *redactor) word(addr string) string {
	kind := ""
	if ip, err := netip.ParseAddr(addr); err == nil && public(ip) {
		kind = "address"
	} else if mac, err := net.ParseMAC(addr); err == nil && !bytes.Equal(mac, make([]byte, 6)) {
		kind = "mac"
	} else {
		return addr
	}
	if r.words[addr] == "" {
		r.words[addr] = r.next(kind)
	}
	return r.words[addr]
}

// public reports whether an address is a public one.
func public(ip netip.Addr) bool {
	shared := netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !shared.Contains(ip)
}
