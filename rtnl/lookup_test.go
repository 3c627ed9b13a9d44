package rtnl_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
)

// LookupRoute follows routing rules and returns the route in the table, not that for the single
// address.
func TestKernelLookupRoute(t *testing.T) {
	c, link := linkWithAddrs(t)
	for _, r := range []rtnl.Route{
		{Dst: netip.MustParsePrefix("192.0.2.0/24"), GW: netip.MustParseAddr("10.1.0.1")},
		{Dst: netip.MustParsePrefix("192.0.2.0/25"), GW: netip.MustParseAddr("10.1.0.2"), Table: 100},
		{Dst: netip.MustParsePrefix("198.51.100.0/24"), Type: unix.RTN_PROHIBIT},
	} {
		if err := c.AddRoute(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Do(rtnl.NewRule(rtnl.Rule{Family: unix.AF_INET, Mark: 7, Table: 100, Priority: 5})); err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort
	for name, tt := range map[string]struct {
		lookup rtnl.Lookup
		want   string
		table  int
	}{
		"main":    {rtnl.Lookup{Dst: to("192.0.2.7:443"), Src: to("10.1.0.2:4000"), Proto: unix.IPPROTO_TCP}, "192.0.2.0/24 via 10.1.0.1 table 254", 254},
		"a mark":  {rtnl.Lookup{Dst: to("192.0.2.7:0"), Mark: 7}, "192.0.2.0/25 via 10.1.0.2 table 100", 100},
		"on link": {rtnl.Lookup{Dst: to("10.1.0.77:0")}, "10.1.0.0/24", 254},
		"IPv6":    {rtnl.Lookup{Dst: to("[2001:db8::7]:53"), Proto: unix.IPPROTO_UDP}, "2001:db8::/64", 254},
	} {
		r, err := c.LookupRoute(tt.lookup)
		if err != nil || len(r) != 1 || r[0].Link != link || r[0].Table != tt.table || !strings.HasPrefix(r[0].String(), tt.want) {
			t.Errorf("%s: got %v, %v; want %s", name, r, err, tt.want)
		}
	}
	_, err := c.LookupRoute(rtnl.Lookup{Dst: to("203.0.113.1:0")})
	wantErr(t, err, unix.ENETUNREACH)
	_, err = c.LookupRoute(rtnl.Lookup{Dst: to("198.51.100.1:0")})
	wantErr(t, err, unix.EACCES)
	_, err = c.LookupRoute(rtnl.Lookup{Dst: to("192.0.2.7:0"), Src: to("198.18.0.1:0"), In: link}) // forwarding is disabled
	wantErr(t, err, unix.EHOSTUNREACH)
}

// An address may have no neighbour entry. The names of states are those of ip(8).
func TestKernelNeighbour(t *testing.T) {
	c, link := linkWithAddrs(t)
	none, err := c.Neighbour(netip.MustParseAddr("10.1.0.77"), link)
	if err != nil || none.Usable() || none.StateText() != "none" {
		t.Errorf("got %+v, %v", none, err)
	}
	for state, want := range map[uint16]string{
		unix.NUD_INCOMPLETE: "incomplete", unix.NUD_REACHABLE: "reachable", unix.NUD_STALE: "stale", unix.NUD_DELAY: "delay",
		unix.NUD_PROBE: "probe", unix.NUD_FAILED: "failed", unix.NUD_NOARP: "noarp", unix.NUD_PERMANENT: "permanent",
	} {
		n := rtnl.Neighbour{State: state}
		if usable := state != unix.NUD_INCOMPLETE && state != unix.NUD_FAILED; n.StateText() != want || n.Usable() != usable {
			t.Errorf("state %#x: %s, usable: %t; want %s", state, n.StateText(), n.Usable(), want)
		}
	}
}
