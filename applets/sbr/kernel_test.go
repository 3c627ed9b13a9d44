package sbr_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// newVeth returns a veth pair with routes in the container.
func newVeth(t *testing.T) *applettest.Veth {
	t.Helper()
	w := applettest.NewVeth(t)
	w.AddRoutes()
	return w
}

// table formats the routes of a table out of eth0.
func table(w *applettest.Veth, n int) string {
	w.Helper()
	routes, err := w.ContConn.Routes(rtnl.RouteFilter{Table: n, Link: w.Eth0.Index})
	w.NoError(err)
	var lines []string
	for _, r := range routes {
		line := r.Dst.String()
		if r.GW.IsValid() {
			line += " via " + r.GW.String()
		}
		if r.Src.IsValid() {
			line += " src " + r.Src.String()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

// sources formats the rules that select by source address.
func sources(w *applettest.Veth) string {
	w.Helper()
	var lines []string
	for _, of := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := w.ContConn.Rules(of)
		w.NoError(err)
		for _, r := range rules {
			if r.Src.IsValid() {
				lines = append(lines, fmt.Sprintf("%s %d", r.Src, r.Table))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func want(w *applettest.Veth, what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s\ngot  %s\nwant %s", what, got, want)
	}
}

func TestKernelSBR(t *testing.T) {
	w := newVeth(t)
	res := w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	for range 2 {
		want(w, "rules", sources(w), "10.9.0.2/32 100, fd09::2/128 101")
		want(w, "IPv4", table(w, 100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
		want(w, "IPv6", table(w, 101), "fd09::/64, ::/0 via fd09::1")
		want(w, "main: what is link-local stays", table(w, 0), "fe80::/64")
		// The result has these tables, so that CHECK of the main plugin finds its routes.
		var tables []string
		for _, r := range res.Routes {
			tables = append(tables, fmt.Sprintf("%s via %s %d", r.Dst, r.GW, *r.Table))
		}
		want(w, "result", strings.Join(tables, ", "), "0.0.0.0/0 via 10.9.0.1 100, ::/0 via fd09::1 101, 192.0.2.0/24 via 10.9.0.7 100")
		w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
		// A second ADD has the same rules, tables and result.
		res = w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	}
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", ""))
	want(w, "rules after DEL", sources(w), "")
	want(w, "IPv4 after DEL", table(w, 100), "")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
}

// Results of versions without table in routes have the routes of the main table only.
func TestKernelSBROldVersion(t *testing.T) {
	w := newVeth(t)
	prev := strings.Replace(w.PrevResult(`[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"198.51.100.0/24"}]`), "1.1.0", "1.0.0", 1)
	res := w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), `"cniVersion":"1.0.0"`, prev))
	if len(res.Routes) != 1 || res.Routes[0].Dst.String() != "198.51.100.0/24" || res.Routes[0].Table != nil {
		t.Errorf("got %+v", res.Routes)
	}
}

// A table is in use if it has routes, or if a rule refers to it.
func TestKernelSBRUsedTables(t *testing.T) {
	w := newVeth(t)
	taken := rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Link: w.Eth0.Index, Table: 100}
	w.NoError(w.ContConn.AddRoute(taken))
	w.NoError(w.ContConn.Do(rtnl.NewRule(rtnl.Rule{Src: netip.MustParsePrefix("203.0.113.0/24"), Table: 101, Priority: 5})))
	w.NoError(w.ContConn.Do(rtnl.NewRule(rtnl.Rule{Family: unix.AF_INET6, Mark: 7, Table: 103, Priority: 5})))
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	want(w, "rules", sources(w), "10.9.0.2/32 102, 203.0.113.0/24 101, fd09::2/128 104")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", ""))
	want(w, "rules", sources(w), "203.0.113.0/24 101")
	want(w, "the table of others", table(w, 100), "203.0.113.0/24")
}

// A configured gateway replaces the default routes.
func TestKernelSBRGateways(t *testing.T) {
	w := newVeth(t)
	keys := `"gateways":["fd09::99","10.9.0.99"]`
	res := w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), keys, w.PrevResult(applettest.VethRoutes)))
	want(w, "IPv4", table(w, 100), "0.0.0.0/0 via 10.9.0.99, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
	want(w, "IPv6", table(w, 101), "fd09::/64, ::/0 via fd09::99")
	want(w, "main", table(w, 0), "fe80::/64")
	if r := res.Routes[0]; r.GW.String() != "10.9.0.99" || *r.Table != 100 {
		t.Errorf("result: got %+v", r)
	}
	w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), keys, w.PrevResult(applettest.VethRoutes)))
	_, err := w.Do(spec.Check, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes))
	w.NoError(err) // any default route suffices without a configured gateway
	_, err = w.Do(spec.Check, "sbr", w.Cont.Call(), `"gateways":["10.9.0.98"]`, w.PrevResult(applettest.VethRoutes))
	w.WantError(err, spec.CodeCheck, "no default route by way of 10.9.0.98")
}

// With source hints the subnets of the addresses and link-local routes remain in the main table,
// and another interface's route to the same subnet is unchanged.
func TestKernelSBRSourceHints(t *testing.T) {
	w := newVeth(t)
	_, second := w.AddPair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.9.0.3/24", "fd09::3/64")
	others := func() string {
		routes, err := w.ContConn.Routes(rtnl.RouteFilter{Link: second.Index})
		w.NoError(err)
		return fmt.Sprint(routes)
	}
	before := others()
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), `"addSourceHints":true`, w.PrevResult(applettest.VethRoutes)))
	want(w, "main", table(w, 0), "10.9.0.0/24 src 10.9.0.2, fd09::/64 src fd09::2, fe80::/64")
	want(w, "IPv4", table(w, 100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
	if got := others(); got != before {
		t.Errorf("eth1: got %s, want %s", got, before)
	}
}

// With two interfaces in one subnet, each sends the answers for its address.
func TestKernelSBRTwoInterfaces(t *testing.T) {
	w := newVeth(t)
	_, second := w.AddPair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.9.0.3/24", "fd09::3/64")
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	call := w.Cont.Call()
	call.IfName = "eth1"
	prev := strings.NewReplacer("eth0", "eth1", "0.2/24", "0.3/24", "::2/64", "::3/64").Replace(w.PrevResult("[]"))
	w.Result(w.Do(spec.Add, "sbr", call, "", prev))
	want(w, "rules", sources(w), "10.9.0.2/32 100, 10.9.0.3/32 102, fd09::2/128 101, fd09::3/128 103")
	w.Eth0 = second
	want(w, "IPv4", table(w, 102), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.3")
	want(w, "IPv6", table(w, 103), "fd09::/64, ::/0 via fd09::1")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", ""))
	want(w, "rules of the other", sources(w), "10.9.0.3/32 102, fd09::3/128 103")
}

func TestKernelSBRTable(t *testing.T) {
	w := newVeth(t)
	before := w.State()
	res := w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), `"table":500`, w.PrevResult(applettest.VethRoutes)))
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), `"table":500`, w.PrevResult(applettest.VethRoutes)))
	want(w, "rules", sources(w), "10.9.0.2/32 500, fd09::2/128 500")
	if res.Routes[0].Table != nil {
		t.Errorf("result: got %+v", res.Routes)
	}
	w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), `"table":500`, w.PrevResult(applettest.VethRoutes)))
	_, err := w.Do(spec.Check, "sbr", w.Cont.Call(), `"table":501`, w.PrevResult(applettest.VethRoutes))
	w.WantError(err, spec.CodeCheck, "table 501 is missing")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), `"table":501`, w.PrevResult(applettest.VethRoutes)))
	want(w, "rules of another table", sources(w), "10.9.0.2/32 500, fd09::2/128 500")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), `"table":500`, ""))
	want(w, "all else", w.State(), before)
}

// CHECK compares each rule and each table.
func TestKernelSBRCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil rtnl.Op
		want  string
	}{
		"rule": {rtnl.DropRule(rtnl.Rule{Src: netip.MustParsePrefix("fd09::2/128"), Table: 101}), "rule from fd09::2"},
		"route": {
			rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Table: 100}), "table 100 of 10.9.0.2 has no default route",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newVeth(t)
			w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
			w.NoError(w.ContConn.Do(tt.spoil))
			before := w.State()
			_, err := w.Do(spec.Check, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes))
			w.WantError(err, spec.CodeCheck, tt.want)
			want(w, "state after CHECK", w.State(), before)
		})
	}
}

func TestKernelSBRInvalidConf(t *testing.T) {
	w := newVeth(t)
	before := w.State()
	_, err := w.Do(spec.Add, "sbr", w.Cont.Call(), "", "")
	w.WantCode(err, spec.CodeConfig)
	_, err = w.Do(spec.Add, "sbr", w.Cont.Call(), "", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`)
	w.WantCode(err, spec.CodeConfig)
	_, err = w.Do(spec.Add, "sbr", w.Cont.Call(), `"gateways":["172.16.0.1"]`, w.PrevResult(applettest.VethRoutes)) // without a route to it
	if err == nil {
		t.Error("a gateway that cannot be reached is taken")
	}
	want(w, "state", w.State(), before)
	w.Result(w.Do(spec.Status, "sbr", spec.Call{}, "", ""))
}

// Without a namespace DEL succeeds, ADD fails, and neither creates anything at the path.
func TestKernelSBRDelWithoutNamespace(t *testing.T) {
	for name, path := range applettest.MissingNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := newVeth(t)
			call := w.Cont.Call()
			call.NetNS = path
			w.Result(w.Do(spec.Del, "sbr", call, "", w.PrevResult(applettest.VethRoutes)))
			w.Result(w.Do(spec.Del, "sbr", call, `"table":"x"`, ""))
			_, err := w.Do(spec.Add, "sbr", call, "", w.PrevResult(applettest.VethRoutes))
			w.WantError(err, spec.CodeNetNS, "netns")
			if _, err := os.Lstat(path); name == "gone" && !os.IsNotExist(err) {
				t.Errorf("%s is there now", path)
			}
		})
	}
	// Without the interface, DEL deletes the rules for the addresses of prevResult.
	w := newVeth(t)
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	w.NoError(w.HostConn.Do(rtnl.DropLink(w.Host0.Index)))
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	want(w, "rules", sources(w), "")
}

// Without interface and prevResult, DEL deletes only the attachment's own rules.
func TestKernelSBRDelWithoutInterface(t *testing.T) {
	w := newVeth(t)
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	w.NoError(w.HostConn.Do(rtnl.DropLink(w.Host0.Index)))
	w.NoError(w.HostConn.AddLink(rtnl.LinkSpec{Name: "other", Up: true, Peer: &rtnl.LinkSpec{Name: "net1", NS: w.Cont.NS}}))
	other := kerneltest.Link(t, w.ContConn, "net1").Index
	rule := func(src string, table int) rtnl.Op {
		return rtnl.NewRule(rtnl.Rule{Src: netip.MustParsePrefix(src), Table: table})
	}
	w.NoError(w.ContConn.Do(rtnl.ChangeLink(other, rtnl.LinkChange{Up: new(true)}), rtnl.NewAddr(other, rtnl.Addr{Prefix: netip.MustParsePrefix("10.8.0.2/24")}),
		rule("10.8.0.2/32", 200), rule("10.7.0.2/32", 201), rule("10.7.0.3/32", 60), rule("10.9.0.2/32", 61), rule("10.7.0.0/24", 203),
		rtnl.NewRoute(rtnl.Route{Dst: netip.MustParsePrefix("10.6.0.0/16"), Link: other, Table: 201})))
	stay := "10.7.0.0/24 203, 10.7.0.2/32 201, 10.7.0.3/32 60, 10.8.0.2/32 200"
	want(w, "rules before", sources(w), stay+", 10.9.0.2/32 100, 10.9.0.2/32 61, fd09::2/128 101")
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", ""))
	want(w, "rules", sources(w), stay+", 10.9.0.2/32 61")
}

// Concurrent ADDs in one namespace use different tables.
func TestKernelSBRConcurrentAdds(t *testing.T) {
	const n = 6
	w := applettest.NewVeth(t)
	errs := make(chan error, n)
	for i := range n {
		name, ip := fmt.Sprintf("net%d", i), fmt.Sprintf("10.20.%d.2/24", i)
		w.AddPair(fmt.Sprintf("h%d", i), name, fmt.Sprintf("10.20.%d.1/24", i), fmt.Sprintf("fd20:%d::1/64", i), ip)
		call := w.Cont.Call()
		call.IfName = name
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q,"sandbox":%q}],"ips":[{"address":%q,"interface":0}]}`, name, w.Cont.Path, ip)
		go func() {
			_, err := w.Do(spec.Add, "sbr", call, "", prev)
			errs <- err
		}()
	}
	for range n {
		w.NoError(<-errs)
	}
	tables := map[string]bool{}
	for rule := range strings.SplitSeq(sources(w), ", ") {
		tables[strings.Fields(rule)[1]] = true
	}
	if len(tables) != n {
		t.Errorf("%d tables for %d interfaces: %s", len(tables), n, sources(w))
	}
}

// CHECK of bridge and of sbr succeeds with the result of sbr.
func TestKernelSBRAfterBridge(t *testing.T) {
	applettest.NeedBridge(t)
	for _, version := range []string{"1.1.0", "0.4.0"} {
		h := applettest.NewHost(t)
		c := h.Container("ctr")
		conf := func(plugin, keys string) string {
			return strings.Replace(applettest.Conf(plugin, keys), "1.1.0", version, 1)
		}
		bridge := conf("bridge", `"bridge":"br0","isDefaultGateway":true,`+applettest.Ranges+`}`)
		sbr := conf("sbr", `"dataDir":"$DIR/sbr"`)
		first := h.Must(spec.Add, "bridge", bridge, c)
		last := h.Must(spec.Add, "sbr", applettest.Prev(sbr, first), c)
		h.Must(spec.Check, "sbr", applettest.Prev(sbr, last), c)
		h.Must(spec.Check, "bridge", applettest.Prev(bridge, last), c)
		h.Must(spec.Del, "sbr", applettest.Prev(sbr, last), c)
		h.Must(spec.Del, "bridge", applettest.Prev(bridge, last), c)
	}
}

func TestKernelSBRGatewayOutOfReach(t *testing.T) {
	w := applettest.NewVeth(t)
	before := w.State()
	_, err := w.Do(spec.Add, "sbr", w.Cont.Call(), `"gateways":["8.8.8.8"]`, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, `eth0: `)
	w.WantError(err, spec.CodeConfig, `8.8.8.8`)
	w.WantError(err, spec.CodeConfig, `correct "gateways"`)
	if after := w.State(); after != before {
		t.Errorf("it left\n%s", kerneltest.Diff(before, after))
	}
}

// The rules of a deleted interface remain. DEL keeps those for an address that another interface
// now has.
func TestKernelSBRDelLeavesRulesOfReusedAddress(t *testing.T) {
	w := newVeth(t)
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", w.PrevResult(applettest.VethRoutes)))
	w.NoError(w.HostConn.Do(rtnl.DropLink(w.Host0.Index)))
	w.Host0, w.Eth0 = w.AddPair("host0", "eth0", "10.9.0.1/24", "fd09::1/64", "10.9.0.2/24")
	w.NoError(w.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParsePrefix("10.9.0.1/32").Addr(), Link: w.Eth0.Index}))
	prev := strings.Replace(w.PrevResult("[]"), `,
			{"address":"fd09::2/64","gateway":"fd09::1","interface":1}`, "", 1)
	w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), `"name":"net2"`, prev))
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), "", ""))
	want(w, "rules", sources(w), "10.9.0.2/32 100")
	want(w, "table", table(w, 100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2")
	w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), `"name":"net2"`, prev))
	w.Result(w.Do(spec.Del, "sbr", w.Cont.Call(), `"name":"net2"`, ""))
	want(w, "rules", sources(w), "")
}

// CHECK reports missing rules and routes, and RESTORE adds them. That includes the route to the
// subnet, which the kernel adds to the main table when the link is set up again.
func TestKernelSBRRestore(t *testing.T) {
	onLink := func(dst string, table int) rtnl.Op {
		return rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), Table: table})
	}
	const toNetwork = "has no route to the network of its gateway 10.9.0.1"
	for name, tt := range map[string]struct {
		spoil func(w *applettest.Veth)
		want  string
	}{
		"down and up": {func(w *applettest.Veth) {
			w.NoError(w.ContConn.SetLink(w.Eth0.Index, rtnl.LinkChange{Up: new(false)}))
			w.NoError(w.ContConn.SetLink(w.Eth0.Index, rtnl.LinkChange{Up: new(true)}))
			kerneltest.WaitUp(w, w.Cont.NS, "eth0")
			// RESTORE of the plugin that made the interface adds it.
			w.NoError(w.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1"), Link: w.Eth0.Index, Table: 100}))
		}, toNetwork},
		"network":       {func(w *applettest.Veth) { w.NoError(w.ContConn.Do(onLink("10.9.0.0/24", 100))) }, toNetwork},
		"default route": {func(w *applettest.Veth) { w.NoError(w.ContConn.Do(onLink("0.0.0.0/0", 100))) }, "no default route by way of 10.9.0.1"},
		"table": {func(w *applettest.Veth) {
			w.NoError(w.ContConn.Do(onLink("0.0.0.0/0", 100), onLink("10.9.0.0/24", 100)))
		},
			"no default route by way of 10.9.0.1"},
		"rule": {func(w *applettest.Veth) {
			w.NoError(w.ContConn.Do(rtnl.DropRule(rtnl.Rule{Src: netip.MustParsePrefix("10.9.0.2/32"), Table: 100})))
		}, "rule from 10.9.0.2 to a table of its own is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			w := applettest.NewVeth(t)
			w.NoError(w.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1"), Link: w.Eth0.Index}))
			prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1","table":100}],
				"ips":[{"address":"10.9.0.2/24","gateway":"10.9.0.1","interface":0}]}`, w.Cont.Path)
			w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", strings.Replace(prev, `,"table":100`, "", 1)))
			state := func() string { return sources(w) + "\n" + table(w, 100) + "\n" + table(w, 101) + "\n" + table(w, 0) }
			before := state()
			want(w, "before", before, "10.9.0.2/32 100\n0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2\n\nfd09::/64, fe80::/64")
			w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), "", prev))
			w.Result(w.Do(spec.Restore, "sbr", w.Cont.Call(), "", prev))
			want(w, "after RESTORE of nothing", state(), before)

			w.NoError(w.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("198.51.100.0/24"), Link: w.Eth0.Index}))
			tt.spoil(w)
			_, err := w.Do(spec.Check, "sbr", w.Cont.Call(), "", prev)
			w.WantError(err, spec.CodeCheck, tt.want)
			// The kernel deleted the IPv6 addresses and routes when the link was down.
			other := strings.TrimPrefix(table(w, 0), "10.9.0.0/24 src 10.9.0.2, ")
			w.Result(w.Do(spec.Restore, "sbr", w.Cont.Call(), "", prev))
			w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), "", prev))
			want(w, "after RESTORE", state(), strings.Replace(before, "fd09::/64, fe80::/64", other, 1))
		})
	}
}

// A gateway outside of the subnet, or with the onlink flag, needs no route.
func TestKernelSBRCheckWithoutNetwork(t *testing.T) {
	w := applettest.NewVeth(t)
	w.NoError(w.ContConn.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("10.9.0.0/24"), Link: w.Eth0.Index})))
	w.NoError(w.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1"), OnLink: true, Link: w.Eth0.Index}))
	for _, address := range []string{"10.9.0.2/24", "10.9.0.2/32"} {
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":%q,"gateway":"10.9.0.1","interface":0}]}`, w.Cont.Path, address)
		if address == "10.9.0.2/24" {
			w.Result(w.Do(spec.Add, "sbr", w.Cont.Call(), "", prev))
			want(w, "table", table(w, 100), "0.0.0.0/0 via 10.9.0.1")
		}
		w.Result(w.Do(spec.Check, "sbr", w.Cont.Call(), "", prev))
	}
}
