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

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Text returns the host's side of a port as errors write it, with * for any address.
func Text(p spec.Port) string {
	host := "*"
	if p.HostIP.IsValid() {
		host = p.HostIP.String()
	}
	return fmt.Sprintf("%s %s port %d", p.Protocol, host, p.HostPort)
}

// Rivals returns the addresses whose port of the number of p conflicts with p: that of p, and if p is for
// any address, any of a common family. A port of one address does not conflict with one of any
// address: it takes precedence.
func Rivals(p spec.Port) []netip.Addr {
	switch {
	case !p.HostIP.IsValid():
		return []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	case p.HostIP.IsUnspecified():
		return []netip.Addr{p.HostIP, {}}
	}
	return []netip.Addr{p.HostIP}
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
func takenBy(h spec.Port, l rtnl.Listener) bool {
	at := l.Addr.Addr()
	four := at.Is4() || at == netip.IPv6Unspecified() && !l.V6Only
	six := at.Is6()
	switch {
	case h.HostPort != l.Addr.Port() || at == netip.IPv6Loopback():
		return false
	case !h.HostIP.IsValid():
		return true
	case h.HostIP.Is4():
		return four && (h.HostIP.IsUnspecified() || at.IsUnspecified() || at == h.HostIP)
	}
	return six && (h.HostIP.IsUnspecified() || at.IsUnspecified() || at == h.HostIP)
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
func Listening(ports []spec.Port) (found []Listener) {
	host := netns.Host()
	listeners := map[string]map[uint16][]rtnl.Listener{} // by protocol and port
	wanted := map[uint32]*Listener{}                     // by inode
	for _, h := range ports {
		if listeners[h.Protocol] == nil {
			byPort := map[uint16][]rtnl.Listener{}
			list, _ := rtnl.Listeners(host, ProtoNumber(h.Protocol))
			for _, l := range list {
				byPort[l.Addr.Port()] = append(byPort[l.Addr.Port()], l)
			}
			listeners[h.Protocol] = byPort
		}
		for _, l := range listeners[h.Protocol][h.HostPort] {
			if takenBy(h, l) {
				wanted[l.Inode] = &Listener{Proto: h.Protocol, Addr: l.Addr}
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
