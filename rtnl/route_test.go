package rtnl_test

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// linkWithAddrs returns a socket and a link that is up and has an address of each family.
func linkWithAddrs(t *testing.T) (*rtnl.Conn, uint32) {
	t.Helper()
	_, _, c, _, l, _ := vethPair(t, true)
	err := c.Do(
		rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.2/24")}),
		rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64"), NoDAD: true}))
	if err != nil {
		t.Fatal(err)
	}
	return c, l.Index
}

func TestKernelRoute(t *testing.T) {
	c, link := linkWithAddrs(t)
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	tests := map[string]struct {
		give rtnl.Route
		want rtnl.Route // with the kernel's default values
	}{
		"IPv4 default": {
			rtnl.Route{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.0.1"), Link: link},
			rtnl.Route{Scope: new(uint8(unix.RT_SCOPE_UNIVERSE))},
		},
		"IPv4 link": {
			rtnl.Route{Dst: prefix("192.0.2.0/24"), Link: link, Src: addr("10.1.0.2")},
			rtnl.Route{Scope: new(uint8(unix.RT_SCOPE_LINK))},
		},
		"IPv4 all": {
			rtnl.Route{
				Dst: prefix("192.0.2.0/24"), GW: addr("10.9.9.9"), Link: link, OnLink: true, MTU: 1300,
				AdvMSS: 1200, Priority: 7, Table: 1000, Protocol: unix.RTPROT_STATIC,
			},
			rtnl.Route{Scope: new(uint8(unix.RT_SCOPE_UNIVERSE))},
		},
		"IPv4 host scope, small table": {
			rtnl.Route{Dst: prefix("192.0.2.7/32"), Link: link, Table: 200, Scope: new(uint8(unix.RT_SCOPE_HOST))},
			rtnl.Route{Scope: new(uint8(unix.RT_SCOPE_HOST))},
		},
		"IPv4 unreachable": {
			rtnl.Route{Dst: prefix("192.0.2.0/24"), Type: unix.RTN_UNREACHABLE},
			rtnl.Route{Scope: new(uint8(unix.RT_SCOPE_LINK))},
		},
		"IPv6 default": {
			rtnl.Route{Dst: prefix("::/0"), GW: addr("2001:db8::1"), Link: link},
			rtnl.Route{Scope: new(uint8(0)), Priority: 1024},
		},
		"IPv6 all": {
			rtnl.Route{
				Dst: prefix("2001:db8:1::/48"), GW: addr("2001:db8::1"), Link: link, MTU: 1300, AdvMSS: 1200,
				Priority: 7, Table: 1000, Src: addr("2001:db8::2"),
			},
			rtnl.Route{Scope: new(uint8(0))},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := c.AddRoute(tt.give); err != nil {
				t.Fatal(err)
			}
			wantErr(t, c.AddRoute(tt.give), os.ErrExist)
			want := withDefaults(tt.give, tt.want)
			got, err := c.Routes(rtnl.RouteFilter{Link: want.Link, Table: want.Table, Dst: want.Dst})
			if err != nil || len(got) != 1 {
				t.Fatalf("got %+v, %v; want one route", got, err)
			}
			if *got[0].Scope != *want.Scope {
				t.Errorf("got scope %d, want %d", *got[0].Scope, *want.Scope)
			}
			got[0].Scope, want.Scope = nil, nil
			if got[0] != want {
				t.Errorf("got %+v, want %+v", got[0], want)
			}
			if err := c.Do(rtnl.DropRoute(tt.give)); err != nil {
				t.Error(err)
			}
			wantErr(t, c.Do(rtnl.DropRoute(tt.give)), os.ErrNotExist)
		})
	}
}

// withDefaults adds the kernel's default values to a route.
func withDefaults(r, by rtnl.Route) rtnl.Route {
	r.Scope = by.Scope
	if r.Priority == 0 {
		r.Priority = by.Priority
	}
	if r.Table == 0 {
		r.Table = unix.RT_TABLE_MAIN
	}
	if r.Protocol == 0 {
		r.Protocol = unix.RTPROT_BOOT
	}
	if r.Type == 0 {
		r.Type = unix.RTN_UNICAST
	}
	if r.Type == unix.RTN_UNREACHABLE {
		r.Link = 0
	}
	return r
}

func TestKernelReplaceRoute(t *testing.T) {
	c, link := linkWithAddrs(t)
	dst := netip.MustParsePrefix("0.0.0.0/0")
	for _, gw := range []string{"10.1.0.1", "10.1.0.3"} {
		if err := c.Do(rtnl.ReplaceRoute(rtnl.Route{Dst: dst, GW: netip.MustParseAddr(gw), Link: link})); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Routes(rtnl.RouteFilter{Dst: dst})
	if err != nil || len(got) != 1 || got[0].GW.String() != "10.1.0.3" {
		t.Errorf("got %v, %v; want the second gateway alone", got, err)
	}
}

// Unset fields of a route to delete match any scope, gateway and metric.
func TestKernelDropRouteByDestination(t *testing.T) {
	c, link := linkWithAddrs(t)
	for _, r := range []rtnl.Route{
		{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: link, Scope: new(uint8(unix.RT_SCOPE_HOST))},
		{Dst: netip.MustParsePrefix("192.0.2.0/24"), GW: netip.MustParseAddr("10.1.0.1"), Priority: 7},
		{Dst: netip.MustParsePrefix("2001:db8:1::/48"), GW: netip.MustParseAddr("2001:db8::1"), Priority: 7},
	} {
		if err := c.Do(rtnl.NewRoute(r), rtnl.DropRoute(rtnl.Route{Dst: r.Dst})); err != nil {
			t.Error(err)
		}
	}
}

func TestKernelRoutesFilter(t *testing.T) {
	c, link := linkWithAddrs(t)
	tests := map[string]struct {
		filter rtnl.RouteFilter
		want   []string
	}{
		"IPv4":          {rtnl.RouteFilter{Family: unix.AF_INET}, []string{"10.1.0.0/24"}},
		"link":          {rtnl.RouteFilter{Family: unix.AF_INET, Link: link}, []string{"10.1.0.0/24"}},
		"other link":    {rtnl.RouteFilter{Link: 1}, nil},
		"destination":   {rtnl.RouteFilter{Dst: netip.MustParsePrefix("2001:db8::9/64")}, []string{"2001:db8::/64"}},
		"no such table": {rtnl.RouteFilter{Table: 4242}, nil},
		"no IPv4 table": {rtnl.RouteFilter{Table: 4242, Family: unix.AF_INET}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			routes, err := c.Routes(tt.filter)
			if err != nil || len(routes) != len(tt.want) {
				t.Fatalf("got %v, %v; want %v", routes, err, tt.want)
			}
			for i, r := range routes {
				if r.Dst.String() != tt.want[i] {
					t.Errorf("got %s, want %s", r.Dst, tt.want[i])
				}
			}
		})
	}
}

func TestKernelRouteTo(t *testing.T) {
	c, link := linkWithAddrs(t)
	if err := c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), GW: netip.MustParseAddr("10.1.0.1")}); err != nil {
		t.Fatal(err)
	}
	for to, gw := range map[string]string{"10.1.0.77": "invalid IP", "192.0.2.7": "10.1.0.1", "2001:db8::7": "invalid IP"} {
		r, err := c.RouteTo(netip.MustParseAddr(to))
		if err != nil || r.Link != link || r.GW.String() != gw || r.Table != unix.RT_TABLE_MAIN {
			t.Errorf("to %s: got %+v, %v", to, r, err)
		}
	}
	_, err := c.RouteTo(netip.MustParseAddr("203.0.113.1"))
	wantErr(t, err, unix.ENETUNREACH)
	_, err = c.RouteTo(netip.Addr{})
	wantErr(t, err, unix.EINVAL)
}

func TestKernelBadRoutes(t *testing.T) {
	tests := map[string]rtnl.Route{
		"no destination":   {},
		"families":         {Dst: netip.MustParsePrefix("10.0.0.0/8"), GW: netip.MustParseAddr("::1")},
		"source's family":  {Dst: netip.MustParsePrefix("::/0"), Src: netip.MustParseAddr("10.0.0.1")},
		"4 in 6":           {Dst: netip.MustParsePrefix("::ffff:10.0.0.0/104")},
		"4 in 6 gateway":   {Dst: netip.MustParsePrefix("::/0"), GW: netip.MustParseAddr("::ffff:10.0.0.1")},
		"negative MTU":     {Dst: netip.MustParsePrefix("::/0"), MTU: -1},
		"negative table":   {Dst: netip.MustParsePrefix("::/0"), Table: -1},
		"negative metric":  {Dst: netip.MustParsePrefix("::/0"), Priority: -1},
		"negative segment": {Dst: netip.MustParsePrefix("::/0"), AdvMSS: -1},
	}
	c := kerneltest.Dial(t, kerneltest.NS(t))
	for name, r := range tests {
		t.Run(name, func(t *testing.T) { wantErr(t, c.AddRoute(r), unix.EINVAL) })
	}
}

func TestKernelRule(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	tests := map[string]rtnl.Rule{
		"IPv4 source":   {Src: netip.MustParsePrefix("10.0.0.7/32"), Table: 100, Priority: 500},
		"big table":     {Src: netip.MustParsePrefix("10.0.0.0/8"), Table: 70000, Priority: 501},
		"links, mark":   {Family: unix.AF_INET6, IIF: "lo", OIF: "eth9", Mark: 0x2000, Table: 101, Priority: 502},
		"IPv6 both":     {Src: netip.MustParsePrefix("2001:db8::/32"), Dst: netip.MustParsePrefix("2001:db9::/32"), Table: 102, Priority: 503},
		"table is main": {Dst: netip.MustParsePrefix("10.0.0.0/8"), Priority: 504},
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if err := c.Do(rtnl.NewRule(r)); err != nil {
				t.Fatal(err)
			}
			wantErr(t, c.Do(rtnl.NewRule(r)), os.ErrExist)
			want := r
			want.Family = unix.AF_INET
			if r.Family == unix.AF_INET6 || r.Src.Addr().Is6() {
				want.Family = unix.AF_INET6
			}
			if want.Table == 0 {
				want.Table = unix.RT_TABLE_MAIN
			}
			if !hasRule(t, c, want) {
				t.Errorf("no %+v", want)
			}
			if err := c.Do(rtnl.DropRule(r)); err != nil {
				t.Error(err)
			}
			wantErr(t, c.Do(rtnl.DropRule(r)), os.ErrNotExist)
		})
	}
	wantErr(t, c.Do(rtnl.NewRule(rtnl.Rule{
		Src: netip.MustParsePrefix("10.0.0.0/8"), Dst: netip.MustParsePrefix("::/0"),
	})), unix.EINVAL)
}

func hasRule(t *testing.T, c *rtnl.Conn, want rtnl.Rule) bool {
	t.Helper()
	rules, err := c.Rules(want.Family)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(rules, want) {
		return true
	}
	t.Logf("there are %+v", rules)
	return false
}
