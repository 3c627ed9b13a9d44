package kerneltest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// Snapshot lists what a plugin could have left in a namespace: links, addresses, routes, rules,
// VLANs, queueing disciplines and sysctls, as sorted lines without indexes. It omits what the kernel
// changes asynchronously: operational states, IPv6 link-local addresses and their routes, neighbours.
//
// Snapshots are compared as text: each object that may have to be undone has a line of its own.
func Snapshot(t testing.TB, ns *netns.NS) string {
	t.Helper()
	c, err := rtnl.Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 100 {
		if text, complete := take(t, ns, c); complete {
			return text
		}
	}
	t.Fatal("links go faster than they can be looked at")
	return ""
}

// take makes one snapshot. complete is false if a link disappeared meanwhile: the kernel deletes
// another namespace, with its links, asynchronously.
func take(t testing.TB, ns *netns.NS, c *rtnl.Conn) (text string, complete bool) {
	t.Helper()
	links, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	s := snapshot{t: t, ns: ns, c: c, names: map[uint32]string{0: "-"}}
	for _, l := range links {
		s.names[l.Index] = l.Name
	}
	for _, l := range links {
		s.link(l)
	}
	s.routes()
	s.settings("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/ipv4/conf/all/route_localnet", "net/ipv6/conf/all/accept_ra")
	slices.Sort(s.lines)
	return strings.Join(s.lines, "\n") + "\n", !s.torn
}

// A snapshot collects the lines of a [Snapshot].
type snapshot struct {
	t     testing.TB
	ns    *netns.NS
	c     *rtnl.Conn
	names map[uint32]string
	lines []string
	torn  bool // a link disappeared meanwhile
}

// must checks the error of a call about a link, which may have disappeared.
func (s *snapshot) must(err error) {
	s.t.Helper()
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.torn = true
	case err != nil:
		s.t.Fatal(err)
	}
}

func (s *snapshot) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// link writes a link, its addresses, VLANs, queueing disciplines and sysctls. A parent in another
// namespace is "elsewhere", since its index means nothing here.
func (s *snapshot) link(l rtnl.Link) {
	s.t.Helper()
	parent := s.names[l.Parent]
	if l.PeerNS {
		parent = "elsewhere"
	}
	s.add("link %s kind %q mtu %d qlen %d mac %s parent %s master %s up %t promisc %t allmulti %t alias %q",
		l.Name, l.Kind, l.MTU, l.TxQLen, l.MAC, parent, s.names[l.Master], l.Up, l.Promisc, l.AllMulti, l.Alias)
	if l.Master != 0 {
		s.add("port %s hairpin %t isolated %t", l.Name, l.Hairpin, l.Isolated)
	}
	if l.Data != nil {
		s.add("data %s %+v", l.Name, l.Data)
	}
	addrs, err := s.c.Addrs(l.Index)
	s.must(err)
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() && a.Prefix.Addr().Is6() {
			continue
		}
		s.add("addr %s %s peer %s", l.Name, a.Prefix, a.Peer)
	}
	vlans, err := s.c.PortVLANs(l.Index)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		s.must(err)
	}
	for _, v := range vlans {
		s.add("vlan %s %+v", l.Name, v)
	}
	s.queues(l)
	v4, v6 := "net/ipv4/conf/"+l.Name+"/", "net/ipv6/conf/"+l.Name+"/"
	s.settings(v4+"forwarding", v4+"route_localnet", v4+"arp_notify", v4+"rp_filter", v4+"proxy_arp",
		v6+"forwarding", v6+"accept_ra", v6+"disable_ipv6", v6+"accept_dad", v6+"keep_addr_on_down")
}

// routes writes the rules of both families, and the routes of the tables that they name, except for
// the table local, which the kernel maintains.
func (s *snapshot) routes() {
	s.t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := s.c.Rules(family)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			s.t.Fatal(err)
		}
		tables := map[int]bool{unix.RT_TABLE_MAIN: true}
		for _, r := range rules {
			s.add("rule %+v", r)
			tables[r.Table] = true
		}
		delete(tables, unix.RT_TABLE_LOCAL)
		for table := range tables {
			s.table(family, table)
		}
	}
}

// table writes the routes of a table for one family.
func (s *snapshot) table(family, table int) {
	s.t.Helper()
	routes, err := s.c.Routes(rtnl.RouteFilter{Table: table, Family: family})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst.Addr().Is6() && r.Dst.Addr().IsLinkLocalUnicast() {
			continue
		}
		s.add("route %s via %s src %s dev %s table %d metric %d mtu %d advmss %d scope %d proto %d type %d",
			r.Dst, r.GW, r.Src, s.names[r.Link], table, r.Priority, r.MTU, r.AdvMSS, *r.Scope, r.Protocol, r.Type)
	}
}

// settings writes the sysctls that the kernel has; without IPv6 it has fewer.
func (s *snapshot) settings(keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		value, err := s.ns.Sysctl(key)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.add("sysctl %s = %s", key, value)
	}
}

// Diff lists the lines that only one of two snapshots has; empty: they are equal.
func Diff(before, after string) string {
	var out []string
	for _, side := range []struct{ mark, in, not string }{{"- ", before, after}, {"+ ", after, before}} {
		have := map[string]bool{}
		for l := range strings.SplitSeq(side.not, "\n") {
			have[l] = true
		}
		for l := range strings.SplitSeq(side.in, "\n") {
			if !have[l] {
				out = append(out, side.mark+l)
			}
		}
	}
	return strings.Join(out, "\n")
}
