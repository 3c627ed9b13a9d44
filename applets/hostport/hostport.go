// Package hostport compares published ports of the host: which of them receive the same packets,
// and on which a process of the host listens.
package hostport

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/rtnl"
)

// A Port is the host's part of a mapping.
type Port struct {
	Proto string     // tcp, udp or sctp
	IP    netip.Addr // zero: any address, of both families; unspecified: any of its family
	Port  uint16
}

// String returns the port as errors write it, with * for any address.
func (h Port) String() string {
	host := "*"
	if h.IP.IsValid() {
		host = h.IP.String()
	}
	return fmt.Sprintf("%s %s port %d", h.Proto, host, h.Port)
}

// InFamily reports whether the mapping can lead to an address of a's family. Others are skipped, as
// in the reference: a pod with two addresses gets each mapping for the address that fits.
func (h Port) InFamily(a netip.Addr) bool {
	return !h.IP.IsValid() || h.IP.Is4() == a.Is4()
}

// Rivals calls fn with the host ports that conflict with h, until fn returns false: h itself, and
// if h is for any address, those for any address of a common family. A port of one address does not
// conflict with one of any address: it takes precedence.
func (h Port) Rivals(fn func(Port) bool) {
	yield := func(ip netip.Addr) bool { return fn(Port{h.Proto, ip, h.Port}) }
	switch {
	case !yield(h.IP):
	case !h.IP.IsValid():
		_ = yield(netip.IPv4Unspecified()) && yield(netip.IPv6Unspecified())
	case h.IP.IsUnspecified():
		yield(netip.Addr{})
	}
}

// ProtoNumber returns the number of a protocol: IPPROTO_*, include/uapi/linux/in.h.
func ProtoNumber(name string) uint8 {
	switch name {
	case "udp":
		return unix.IPPROTO_UDP
	case "sctp":
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// takenBy reports whether a mapping of the port takes packets from a socket, which is when bind(2)
// of the same port would fail. A socket on 127.0.0.1 conflicts with a port of any address, since
// connections of the host to it are mapped too; those to ::1 are not.
func (h Port) takenBy(l rtnl.Listener) bool {
	at := l.Addr.Addr()
	four := at.Is4() || at == netip.IPv6Unspecified() && !l.V6Only
	six := at.Is6()
	switch {
	case h.Port != l.Addr.Port() || at == netip.IPv6Loopback():
		return false
	case !h.IP.IsValid():
		return true
	case h.IP.Is4():
		return four && (h.IP.IsUnspecified() || at.IsUnspecified() || at == h.IP)
	}
	return six && (h.IP.IsUnspecified() || at.IsUnspecified() || at == h.IP)
}

// A Listener is a socket on which a process of the host listens.
type Listener struct {
	Proto   string
	Addr    netip.AddrPort
	Program string // name of the process; empty: /proc does not show it
	PID     string
}

// String formats it as "tcp 0.0.0.0:22: sshd (pid 812)".
func (l Listener) String() string {
	holder := "a process that /proc does not show"
	if l.Program != "" {
		holder = fmt.Sprintf("%s (pid %s)", l.Program, l.PID)
	}
	return fmt.Sprintf("%s %s: %s", l.Proto, l.Addr, holder)
}

// TakenFrom is part of the warning about a process that listens on a published port.
const TakenFrom = "listens there on this host, and gets nothing any more"

// Listening returns the sockets in this network namespace that listen on one of the ports, without
// duplicates. A port that the kernel does not report counts as free.
func Listening(ports []Port) (found []Listener) {
	host := netns.Host()
	listeners := map[string]map[uint16][]rtnl.Listener{} // by protocol and port
	wanted := map[uint32]*Listener{}                     // by inode
	for _, h := range ports {
		if listeners[h.Proto] == nil {
			byPort := map[uint16][]rtnl.Listener{}
			list, _ := rtnl.Listeners(host, ProtoNumber(h.Proto))
			for _, l := range list {
				byPort[l.Addr.Port()] = append(byPort[l.Addr.Port()], l)
			}
			listeners[h.Proto] = byPort
		}
		for _, l := range listeners[h.Proto][h.Port] {
			if h.takenBy(l) {
				wanted[l.Inode] = &Listener{Proto: h.Proto, Addr: l.Addr}
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	findProcesses(wanted)
	for _, l := range wanted {
		found = append(found, *l)
	}
	slices.SortFunc(found, func(a, b Listener) int { return cmp.Compare(a.String(), b.String()) })
	return found
}

// findProcesses finds, by inode, a process that has each socket open. It sees the processes of its
// own PID namespace that it may inspect.
func findProcesses(wanted map[uint32]*Listener) {
	left := len(wanted)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := "/proc/" + e.Name()
		fds, _ := os.ReadDir(dir + "/fd")
		for _, fd := range fds {
			link, _ := os.Readlink(dir + "/fd/" + fd.Name())
			text, ok := strings.CutPrefix(link, "socket:[")
			if !ok {
				continue
			}
			inode, _ := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
			if l := wanted[uint32(inode)]; l != nil && l.PID == "" {
				comm, _ := os.ReadFile(dir + "/comm")
				l.Program, l.PID = strings.TrimSpace(string(comm)), e.Name()
				left--
			}
		}
		if left == 0 {
			return
		}
	}
}
