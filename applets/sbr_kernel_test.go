//go:build !no_sbr

package applets_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

const defaults = `[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"::/0","gw":"fd09::1"},{"dst":"192.0.2.0/24","gw":"10.9.0.7"}]`

// routed puts the routes of defaults on eth0.
func (w *wire) routed() *wire {
	w.t.Helper()
	for dst, gw := range map[string]string{"0.0.0.0/0": "10.9.0.1", "::/0": "fd09::1", "192.0.2.0/24": "10.9.0.7"} {
		w.ok(w.c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: w.eth.Index}))
	}
	return w
}

// table lists the routes of a table in the container, and where rules lead to.
func (w *wire) table(n int) string {
	w.t.Helper()
	routes, err := w.c.Routes(rtnl.RouteFilter{Table: n, Link: w.eth.Index})
	w.ok(err)
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

// sources lists the rules of addresses.
func (w *wire) sources() string {
	w.t.Helper()
	var lines []string
	for _, of := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := w.c.Rules(of)
		w.ok(err)
		for _, r := range rules {
			if r.Src.IsValid() {
				lines = append(lines, fmt.Sprintf("%s %d", r.Src, r.Table))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func (w *wire) want(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s\ngot  %s\nwant %s", what, got, want)
	}
}

func TestKernelSBR(t *testing.T) {
	w := newWire(t).routed()
	res := w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	for range 2 {
		w.want("rules", w.sources(), "10.9.0.2/32 100, fd09::2/128 101")
		w.want("IPv4", w.table(100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
		w.want("IPv6", w.table(101), "fd09::/64, ::/0 via fd09::1")
		w.want("main: [S] what is link-local stays", w.table(0), "fe80::/64")
		// [S] the routes of the result are where it says, so CHECK of the main plugin finds them
		var tables []string
		for _, r := range res.Routes {
			tables = append(tables, fmt.Sprintf("%s via %s %d", r.Dst, r.GW, *r.Table))
		}
		w.want("result", strings.Join(tables, ", "), "0.0.0.0/0 via 10.9.0.1 100, ::/0 via fd09::1 101, 192.0.2.0/24 via 10.9.0.7 100")
		w.must(w.run("sbr", spec.Check, w.call(), "", w.prev(defaults)))
		// ADD again: the same rules, tables and result
		res = w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	}
	w.must(w.run("sbr", spec.Del, w.call(), "", ""))
	w.want("rules after DEL", w.sources(), "")
	w.want("IPv4 after DEL", w.table(100), "")
	w.must(w.run("sbr", spec.Del, w.call(), "", w.prev(defaults)))
}

// A version without tables in its routes has only those that are in the main table.
func TestKernelSBROldResult(t *testing.T) {
	w := newWire(t).routed()
	prev := strings.Replace(w.prev(`[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"198.51.100.0/24"}]`), "1.1.0", "1.0.0", 1)
	res := w.must(w.runAs("1.0.0", "sbr", spec.Add, "", prev))
	if len(res.Routes) != 1 || res.Routes[0].Dst.String() != "198.51.100.0/24" || res.Routes[0].Table != nil {
		t.Errorf("got %+v", res.Routes)
	}
}

// runAs is run for eth0 in an older version.
func (w *wire) runAs(version, plugin string, v spec.Verb, keys, prev string) (*spec.Result, error) {
	return w.run(plugin, v, w.call(), `"cniVersion":"`+version+`"`+keys, prev)
}

// [S] A table that has routes, and one that only a rule leads to, is not free.
func TestKernelSBRUsedTables(t *testing.T) {
	w := newWire(t).routed()
	taken := rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Link: w.eth.Index, Table: 100}
	w.ok(w.c.AddRoute(taken))
	w.ok(w.c.Do(rtnl.NewRule(rtnl.Rule{Src: netip.MustParsePrefix("203.0.113.0/24"), Table: 101, Priority: 5})))
	w.ok(w.c.Do(rtnl.NewRule(rtnl.Rule{Family: unix.AF_INET6, Mark: 7, Table: 103, Priority: 5})))
	w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	w.want("rules", w.sources(), "10.9.0.2/32 102, 203.0.113.0/24 101, fd09::2/128 104")
	w.must(w.run("sbr", spec.Del, w.call(), "", ""))
	w.want("rules", w.sources(), "203.0.113.0/24 101")
	w.want("the table of others", w.table(100), "203.0.113.0/24")
}

// [S] A gateway of the configuration is the one that counts.
func TestKernelSBRGateways(t *testing.T) {
	w := newWire(t).routed()
	keys := `"gateways":["fd09::99","10.9.0.99"]`
	res := w.must(w.run("sbr", spec.Add, w.call(), keys, w.prev(defaults)))
	w.want("IPv4", w.table(100), "0.0.0.0/0 via 10.9.0.99, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
	w.want("IPv6", w.table(101), "fd09::/64, ::/0 via fd09::99")
	w.want("main", w.table(0), "fe80::/64")
	if r := res.Routes[0]; r.GW.String() != "10.9.0.99" || *r.Table != 100 {
		t.Errorf("result: got %+v", r)
	}
	w.must(w.run("sbr", spec.Check, w.call(), keys, w.prev(defaults)))
	_, err := w.run("sbr", spec.Check, w.call(), "", w.prev(defaults))
	w.ok(err) // any default route will do without a gateway of the configuration
	_, err = w.run("sbr", spec.Check, w.call(), `"gateways":["10.9.0.98"]`, w.prev(defaults))
	w.refused(err, spec.CodeCheck, "no default route by way of 10.9.0.98")
}

// [S] With source hints the own networks and what is link-local stay in the main table,
// and another interface's route to the same network is left alone.
func TestKernelSBRHints(t *testing.T) {
	w := newWire(t).routed()
	_, second := w.pair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.9.0.3/24", "fd09::3/64")
	others := func() string {
		routes, err := w.c.Routes(rtnl.RouteFilter{Link: second.Index})
		w.ok(err)
		return fmt.Sprint(routes)
	}
	before := others()
	w.must(w.run("sbr", spec.Add, w.call(), `"addSourceHints":true`, w.prev(defaults)))
	w.want("main", w.table(0), "10.9.0.0/24 src 10.9.0.2, fd09::/64 src fd09::2, fe80::/64")
	w.want("IPv4", w.table(100), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.2, 192.0.2.0/24 via 10.9.0.7")
	if got := others(); got != before {
		t.Errorf("eth1: got %s, want %s", got, before)
	}
}

// Two interfaces in one network, which is what the plugin is for: each answers for itself.
func TestKernelSBRTwoInterfaces(t *testing.T) {
	w := newWire(t).routed()
	_, second := w.pair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.9.0.3/24", "fd09::3/64")
	w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	call := w.call()
	call.IfName = "eth1"
	prev := strings.NewReplacer("eth0", "eth1", "0.2/24", "0.3/24", "::2/64", "::3/64").Replace(w.prev("[]"))
	w.must(w.run("sbr", spec.Add, call, "", prev))
	w.want("rules", w.sources(), "10.9.0.2/32 100, 10.9.0.3/32 102, fd09::2/128 101, fd09::3/128 103")
	w.eth = second
	w.want("IPv4", w.table(102), "0.0.0.0/0 via 10.9.0.1, 10.9.0.0/24 src 10.9.0.3")
	w.want("IPv6", w.table(103), "fd09::/64, ::/0 via fd09::1")
	w.must(w.run("sbr", spec.Del, w.call(), "", ""))
	w.want("rules of the other", w.sources(), "10.9.0.3/32 102, fd09::3/128 103")
}

func TestKernelSBRTable(t *testing.T) {
	w := newWire(t).routed()
	before := w.state()
	res := w.must(w.run("sbr", spec.Add, w.call(), `"table":500`, w.prev(defaults)))
	w.must(w.run("sbr", spec.Add, w.call(), `"table":500`, w.prev(defaults)))
	w.want("rules", w.sources(), "10.9.0.2/32 500, fd09::2/128 500")
	if res.Routes[0].Table != nil {
		t.Errorf("result: got %+v", res.Routes)
	}
	w.must(w.run("sbr", spec.Check, w.call(), `"table":500`, w.prev(defaults)))
	_, err := w.run("sbr", spec.Check, w.call(), `"table":501`, w.prev(defaults))
	w.refused(err, spec.CodeCheck, "table 501 is missing")
	w.must(w.run("sbr", spec.Del, w.call(), `"table":501`, w.prev(defaults)))
	w.want("rules of another table", w.sources(), "10.9.0.2/32 500, fd09::2/128 500")
	w.must(w.run("sbr", spec.Del, w.call(), `"table":500`, ""))
	w.want("all else", w.state(), before)
}

// [S] CHECK looks: at each rule and each table.
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
			w := newWire(t).routed()
			w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
			w.ok(w.c.Do(tt.spoil))
			before := w.state()
			_, err := w.run("sbr", spec.Check, w.call(), "", w.prev(defaults))
			w.refused(err, spec.CodeCheck, tt.want)
			w.want("state after CHECK", w.state(), before)
		})
	}
}

func TestKernelSBRRefused(t *testing.T) {
	w := newWire(t).routed()
	before := w.state()
	_, err := w.run("sbr", spec.Add, w.call(), "", "")
	w.refused(err, spec.CodeConfig, "must be called as chained plugin")
	_, err = w.run("sbr", spec.Add, w.call(), "", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`)
	w.refused(err, spec.CodeConfig, "No IP addresses supplied on interface: eth0")
	_, err = w.run("sbr", spec.Add, w.call(), `"gateways":["172.16.0.1"]`, w.prev(defaults)) // which no route leads to
	if err == nil {
		t.Error("a gateway that cannot be reached is taken")
	}
	w.want("state", w.state(), before)
	w.must(w.run("sbr", spec.Status, spec.Call{}, "", ""))
}

func TestKernelSBRRollback(t *testing.T) {
	never := func(string) bool { return false }
	for name, keys := range map[string]string{
		"plain": "", "gateways": `"gateways":["10.9.0.99"]`, "hints": `"addSourceHints":true`, "table": `"table":500`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t).routed()
			w.pair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.9.0.3/24", "fd09::3/64")
			w.rollback("sbr", keys, w.prev(defaults), never)
		})
	}
}

// [S] DEL without a namespace is fine and creates nothing at the path, nor does ADD.
func TestKernelSBRDelOfGone(t *testing.T) {
	for name, path := range goneNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := newWire(t).routed()
			call := w.call()
			call.NetNS = path
			w.must(w.run("sbr", spec.Del, call, "", w.prev(defaults)))
			w.must(w.run("sbr", spec.Del, call, `"table":"x"`, ""))
			_, err := w.run("sbr", spec.Add, call, "", w.prev(defaults))
			w.refused(err, spec.CodeNetNS, "netns")
			if _, err := os.Lstat(path); name == "gone" && !os.IsNotExist(err) {
				t.Errorf("%s is there now", path)
			}
		})
	}
	// without the interface the addresses of prevResult tell the rules
	w := newWire(t).routed()
	w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	w.ok(w.h.Do(rtnl.DropLink(w.veth.Index)))
	w.must(w.run("sbr", spec.Del, w.call(), "", w.prev(defaults)))
	w.want("rules", w.sources(), "")
}

// Without interface and prevResult, DEL removes the rules that lead nowhere, and no other.
func TestKernelSBRDelOfOrphans(t *testing.T) {
	w := newWire(t).routed()
	w.must(w.run("sbr", spec.Add, w.call(), "", w.prev(defaults)))
	w.ok(w.h.Do(rtnl.DropLink(w.veth.Index)))
	w.ok(w.h.AddLink(rtnl.LinkSpec{Name: "other", Up: true, Peer: &rtnl.LinkSpec{Name: "net1", NS: w.cont}}))
	other := linkOf(t, w.c, "net1").Index
	rule := func(src string, table int) rtnl.Op { return rtnl.NewRule(rtnl.Rule{Src: prefix(src), Table: table}) }
	w.ok(w.c.Do(rtnl.ChangeLink(other, rtnl.LinkChange{Up: new(true)}), rtnl.NewAddr(other, rtnl.Addr{Prefix: prefix("10.8.0.2/24")}),
		rule("10.8.0.2/32", 200), rule("10.7.0.2/32", 201), rule("10.7.0.3/32", 60), rule("10.9.0.2/32", 61), rule("10.7.0.0/24", 203),
		rtnl.NewRoute(rtnl.Route{Dst: prefix("10.6.0.0/16"), Link: other, Table: 201})))
	stay := "10.7.0.0/24 203, 10.7.0.2/32 201, 10.7.0.3/32 60, 10.8.0.2/32 200"
	w.want("rules before", w.sources(), stay+", 10.9.0.2/32 100, 10.9.0.2/32 61, fd09::2/128 101")
	w.must(w.run("sbr", spec.Del, w.call(), "", ""))
	w.want("rules", w.sources(), stay+", 10.9.0.2/32 61")
}

// Several ADDs at once in one namespace choose tables of their own.
func TestKernelSBRAtOnce(t *testing.T) {
	const n = 6
	w := newWire(t)
	errs := make(chan error, n)
	for i := range n {
		name, ip := fmt.Sprintf("net%d", i), fmt.Sprintf("10.20.%d.2/24", i)
		w.pair(fmt.Sprintf("h%d", i), name, fmt.Sprintf("10.20.%d.1/24", i), fmt.Sprintf("fd20:%d::1/64", i), ip)
		call := w.call()
		call.IfName = name
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":%q,"sandbox":%q}],"ips":[{"address":%q,"interface":0}]}`, name, w.path, ip)
		go func() {
			_, err := w.run("sbr", spec.Add, call, "", prev)
			errs <- err
		}()
	}
	for range n {
		w.ok(<-errs)
	}
	tables := map[string]bool{}
	for _, rule := range strings.Split(w.sources(), ", ") {
		tables[strings.Fields(rule)[1]] = true
	}
	if len(tables) != n {
		t.Errorf("%d tables for %d interfaces: %s", len(tables), n, w.sources())
	}
}

// A chain of bridge and sbr: CHECK of both passes with the result of the last.
func TestKernelSBRBehindBridge(t *testing.T) {
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{}})
	})
	for _, version := range []string{"1.1.0", "0.4.0"} {
		n := newNode(t)
		p := n.pod("ctr")
		conf := func(plugin, keys string) string {
			return fmt.Sprintf(`{"cniVersion":%q,"name":"demo","type":%q%s}`, version, plugin, keys)
		}
		bridge := conf("bridge", `,"bridge":"br0","isDefaultGateway":true,"ipam":{"type":"host-local","dataDir":`+
			string(must(json.Marshal(filepath.Join(n.dir, "leases"))))+`,"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`)
		first := n.must(spec.Add, "bridge", bridge, p)
		last := n.must(spec.Add, "sbr", prev(conf("sbr", `,"dataDir":"$DIR/sbr"`), first), p)
		n.must(spec.Check, "sbr", prev(conf("sbr", `,"dataDir":"$DIR/sbr"`), last), p)
		n.must(spec.Check, "bridge", prev(bridge, last), p)
		n.must(spec.Del, "sbr", prev(conf("sbr", `,"dataDir":"$DIR/sbr"`), last), p)
		n.must(spec.Del, "bridge", prev(bridge, last), p)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestKernelSBRGatewayOutOfReach(t *testing.T) {
	w := newWire(t)
	before := w.state()
	_, err := w.run("sbr", spec.Add, w.call(), `"gateways":["8.8.8.8"]`, w.prev("[]"))
	w.refused(err, spec.CodeConfig, `eth0: `)
	w.refused(err, spec.CodeConfig, `8.8.8.8`)
	w.refused(err, spec.CodeConfig, `correct "gateways"`)
	if after := w.state(); after != before {
		t.Errorf("it left\n%s", kerneltest.Diff(before, after))
	}
}
