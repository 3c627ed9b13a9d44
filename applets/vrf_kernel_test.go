//go:build !no_vrf

package applets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A domain is a wire whose container has routes, and rules for VRFs: the kernel makes
// them with the first one of a namespace, and keeps them.
func newDomain(t *testing.T) *wire {
	t.Helper()
	w := newWire(t)
	kerneltest.Need(t, "CONFIG_NET_VRF", func() error {
		return w.c.AddLink(rtnl.LinkSpec{Name: "first", Kind: rtnl.VRF{Table: 9}})
	})
	w.ok(w.c.DelLink("first"))
	for dst, gw := range map[string]string{"0.0.0.0/0": "10.9.0.1", "::/0": "fd09::1", "192.0.2.0/24": "10.9.0.7"} {
		w.ok(w.c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: w.eth.Index}))
	}
	near := rtnl.Route{Dst: netip.MustParsePrefix("198.51.100.0/24"), Link: w.eth.Index}
	other := rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Link: w.eth.Index, Table: 700}
	w.ok(w.c.Do(rtnl.NewRoute(near), rtnl.NewRoute(other)))
	return w
}

const vrfRoutes = `[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"::/0"},{"dst":"192.0.2.0/24","gw":"10.9.0.7"},{"dst":"203.0.113.0/24","table":700}]`

// in lists the routes of a table out of eth0, but for those of the kernel.
func (w *wire) in(table int) string {
	w.t.Helper()
	routes, err := w.c.Routes(rtnl.RouteFilter{Table: table, Link: w.eth.Index})
	w.ok(err)
	var lines []string
	for _, r := range routes {
		if r.Protocol != 2 { // RTPROT_KERNEL
			lines = append(lines, strings.TrimSuffix(fmt.Sprint(r.Dst, " ", r.GW), " invalid IP"))
		}
	}
	return strings.Join(lines, ", ")
}

func TestKernelVRF(t *testing.T) {
	w := newDomain(t)
	before := w.state()
	const keys = `"vrfname":"blue"`
	// [S] a table that has routes or rules is not free
	w.ok(w.c.Do(rtnl.NewRule(rtnl.Rule{Mark: 7, Table: 1, Priority: 5})))
	res := w.must(w.run("vrf", spec.Add, w.call(), keys, w.prev(vrfRoutes)))
	for range 2 {
		vrf, err := w.c.Link("blue")
		w.ok(err)
		eth, err := w.c.Link("eth0")
		w.ok(err)
		if vrf.Data != (rtnl.VRF{Table: 2}) || !vrf.Up || eth.Master != vrf.Index || !eth.Up {
			t.Errorf("got %+v and %+v", vrf, eth)
		}
		if got, want := w.in(2), "0.0.0.0/0 10.9.0.1, 192.0.2.0/24 10.9.0.7, 198.51.100.0/24, ::/0 fd09::1"; got != want {
			t.Errorf("table of the VRF: got %s, want %s", got, want)
		}
		if w.in(0) != "" || w.in(700) != "203.0.113.0/24" {
			t.Errorf("main: %s, table 700: %s", w.in(0), w.in(700))
		}
		addrs, err := w.c.Addrs(w.eth.Index)
		w.ok(err)
		if s := fmt.Sprint(addrs); !strings.Contains(s, "10.9.0.2/24") || !strings.Contains(s, "fd09::2/64") {
			t.Errorf("addresses: got %s", s)
		}
		var tables []int
		for _, r := range res.Routes {
			tables = append(tables, *r.Table)
		}
		if got := fmt.Sprint(tables); got != "[2 2 2 700]" {
			t.Errorf("tables of the result: got %s", got)
		}
		w.must(w.run("vrf", spec.Check, w.call(), keys, w.prev(vrfRoutes)))
		res = w.must(w.run("vrf", spec.Add, w.call(), keys, w.prev(vrfRoutes))) // once more
	}
	w.must(w.run("vrf", spec.Del, w.call(), keys, ""))
	if after := w.state(); strings.Contains(after, "blue") || !strings.Contains(before, "::/0 via fd09::1") {
		t.Errorf("after DEL:\n%s", after)
	}
	w.must(w.run("vrf", spec.Del, w.call(), keys, ""))
}

// The VRF goes with the last interface that is in it.
func TestKernelVRFLast(t *testing.T) {
	w := newDomain(t)
	w.pair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.8.0.2/24", "fd08::2/64")
	second := w.call()
	second.IfName = "eth1"
	const keys = `"vrfname":"blue","table":1001`
	prev := strings.NewReplacer("eth0", "eth1", "10.9.", "10.8.", "fd09", "fd08").Replace(w.prev("[]"))
	w.must(w.run("vrf", spec.Add, w.call(), keys, w.prev(vrfRoutes)))
	w.must(w.run("vrf", spec.Add, second, `"vrfname":"blue"`, prev))
	w.must(w.run("vrf", spec.Check, second, keys, prev))
	_, err := w.run("vrf", spec.Add, second, `"vrfname":"blue","table":1002`, prev)
	w.refused(err, spec.CodeConfig, "already exist with different routing table 1001")
	_, err = w.run("vrf", spec.Add, second, `"vrfname":"red"`, prev)
	w.refused(err, spec.CodeConfig, "has already a master set")
	if _, err := w.c.Link("red"); err == nil {
		t.Error("the VRF of a refused ADD is there")
	}
	w.must(w.run("vrf", spec.Del, w.call(), `"vrfname":""`, "")) // the one it is in
	w.must(w.run("vrf", spec.Check, second, keys, prev))
	// [S] the interface may be gone
	w.ok(w.c.DelLink("eth1"))
	w.must(w.run("vrf", spec.Del, second, keys, ""))
	if _, err := w.c.Link("blue"); err == nil {
		t.Error("the VRF is still there")
	}
}

func TestKernelVRFCheck(t *testing.T) {
	const keys = `"vrfname":"blue","table":1001`
	for name, tt := range map[string]struct {
		spoil func(w *wire, vrf *rtnl.Link) rtnl.Op
		want  string
	}{
		"VRF gone": {func(_ *wire, vrf *rtnl.Link) rtnl.Op { return rtnl.DropLink(vrf.Index) }, "blue"},
		"VRF down": {func(_ *wire, vrf *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(vrf.Index, rtnl.LinkChange{Up: new(false)})
		}, "is down"},
		"no member": {func(w *wire, _ *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(w.eth.Index, rtnl.LinkChange{Master: new(uint32(0))})
		}, "failed to find eth0 associated to vrf blue"},
		"address": {func(w *wire, _ *rtnl.Link) rtnl.Op {
			return rtnl.DropAddr(w.eth.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("fd09::2/64")})
		}, "does not have address fd09::2"},
		"[S] route": {func(*wire, *rtnl.Link) rtnl.Op {
			return rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Table: 1001})
		}, "route 192.0.2.0/24 of eth0 is missing in table 1001 of its VRF"},
		"route of another table": {func(*wire, *rtnl.Link) rtnl.Op {
			return rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Table: 700})
		}, "missing in table 700"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDomain(t)
			w.must(w.run("vrf", spec.Add, w.call(), keys, w.prev(vrfRoutes)))
			vrf, err := w.c.Link("blue")
			w.ok(err)
			w.ok(w.c.Do(tt.spoil(w, vrf)))
			before := w.state()
			_, err = w.run("vrf", spec.Check, w.call(), keys, w.prev(vrfRoutes))
			w.refused(err, spec.CodeCheck, tt.want)
			if after := w.state(); after != before {
				t.Errorf("CHECK changed something:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
	w := newDomain(t)
	w.must(w.run("vrf", spec.Add, w.call(), keys, w.prev(vrfRoutes)))
	_, err := w.run("vrf", spec.Check, w.call(), `"vrfname":"blue","table":1002`, w.prev(vrfRoutes))
	w.refused(err, spec.CodeCheck, "has table 1001, not 1002")
}

func TestKernelVRFRefused(t *testing.T) {
	w := newDomain(t)
	before := w.state()
	_, err := w.run("vrf", spec.Add, w.call(), `"vrfname":"blue"`, "")
	w.refused(err, spec.CodeConfig, "missing prevResult from earlier plugin")
	_, err = w.run("vrf", spec.Add, w.call(), `"vrfname":"lo"`, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "not a VRF")
	call := w.call()
	call.IfName = "eth7"
	_, err = w.run("vrf", spec.Add, call, `"vrfname":"blue"`, w.prev("[]"))
	w.refused(err, spec.CodeConfig, "eth7")
	if after := w.state(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.must(w.run("vrf", spec.Status, spec.Call{}, `"vrfname":"blue"`, ""))
}

func TestKernelVRFRollback(t *testing.T) {
	w := newDomain(t)
	w.rollback("vrf", `"vrfname":"blue"`, w.prev(vrfRoutes), func(string) bool { return false })
}

// A missing namespace is no error of DEL, whatever the configuration. This needs no VRF.
func TestKernelVRFDelOfGone(t *testing.T) {
	for name, path := range goneNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := newWire(t)
			call := w.call()
			call.NetNS = path
			w.must(w.run("vrf", spec.Del, call, `"vrfname":"blue"`, w.prev("[]")))
			w.must(w.run("vrf", spec.Del, call, `"table":true`, ""))
			_, err := w.run("vrf", spec.Add, call, `"vrfname":"blue"`, w.prev("[]"))
			w.refused(err, spec.CodeNetNS, "netns")
		})
	}
	w := newWire(t)
	before := w.state()
	w.must(w.run("vrf", spec.Del, w.call(), `"vrfname":"blue"`, ""))
	w.must(w.run("vrf", spec.Del, w.call(), `"vrfname":"lo"`, ""))
	if after := w.state(); after != before {
		t.Errorf("DEL without a VRF changed something:\n%s", kerneltest.Diff(before, after))
	}
}

func TestKernelVRFMissing(t *testing.T) {
	w := newWire(t)
	fault.Hook = func(what string) error {
		if strings.Contains(what, "vrf") {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	_, err := w.run("vrf", spec.Add, w.call(), `"vrfname":"blue"`, w.prev("[]"))
	w.refused(err, spec.CodeHost, "CONFIG_NET_VRF")
}
