package vrf_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// newVeth returns a veth pair with routes in the container, which has the rules that the kernel
// adds with the first VRF of a namespace.
func newVeth(t *testing.T) *applettest.Veth {
	t.Helper()
	w := applettest.NewVeth(t)
	applettest.HadVRF(t, w.Cont)
	w.AddRoutes()
	near := rtnl.Route{Dst: netip.MustParsePrefix("198.51.100.0/24"), Link: w.Eth0.Index}
	other := rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Link: w.Eth0.Index, Table: 700}
	w.NoError(w.ContConn.Do(rtnl.NewRoute(near), rtnl.NewRoute(other)))
	return w
}

const vrfRoutes = `[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"::/0"},{"dst":"192.0.2.0/24","gw":"10.9.0.7"},{"dst":"203.0.113.0/24","table":700}]`

// routes formats the routes of a table out of eth0, without those that the kernel added.
func routes(w *applettest.Veth, table int) string {
	w.Helper()
	all, err := w.ContConn.Routes(rtnl.RouteFilter{Table: table, Link: w.Eth0.Index})
	w.NoError(err)
	var lines []string
	for _, r := range all {
		if r.Protocol != 2 { // RTPROT_KERNEL
			lines = append(lines, strings.TrimSuffix(fmt.Sprint(r.Dst, " ", r.GW), " invalid IP"))
		}
	}
	return strings.Join(lines, ", ")
}

func TestKernelVRF(t *testing.T) {
	w := newVeth(t)
	before := w.State()
	const keys = `"vrfname":"blue"`
	// A table with routes or rules is in use.
	w.NoError(w.ContConn.Do(rtnl.NewRule(rtnl.Rule{Mark: 7, Table: 1, Priority: 5})))
	res := w.Result(w.Do(spec.Add, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes)))
	for range 2 {
		vrf, err := w.ContConn.Link("blue")
		w.NoError(err)
		eth, err := w.ContConn.Link("eth0")
		w.NoError(err)
		if vrf.Data != (rtnl.VRF{Table: 2}) || !vrf.Up || eth.Master != vrf.Index || !eth.Up {
			t.Errorf("got %+v and %+v", vrf, eth)
		}
		if got, want := routes(w, 2), "0.0.0.0/0 10.9.0.1, 192.0.2.0/24 10.9.0.7, 198.51.100.0/24, ::/0 fd09::1"; got != want {
			t.Errorf("table of the VRF: got %s, want %s", got, want)
		}
		if routes(w, 0) != "" || routes(w, 700) != "203.0.113.0/24" {
			t.Errorf("main: %s, table 700: %s", routes(w, 0), routes(w, 700))
		}
		addrs, err := w.ContConn.Addrs(w.Eth0.Index)
		w.NoError(err)
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
		w.Result(w.Do(spec.Check, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes)))
		res = w.Result(w.Do(spec.Add, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes))) // a second ADD
	}
	w.Result(w.Do(spec.Del, "vrf", w.Cont.Call(), keys, ""))
	if after := w.State(); strings.Contains(after, "blue") || !strings.Contains(before, "::/0 via fd09::1") {
		t.Errorf("after DEL:\n%s", after)
	}
	w.Result(w.Do(spec.Del, "vrf", w.Cont.Call(), keys, ""))
}

// The VRF is deleted with its last interface.
func TestKernelVRFDeletedWithLastInterface(t *testing.T) {
	w := newVeth(t)
	w.AddPair("host1", "eth1", "10.8.0.1/24", "fd08::1/64", "10.8.0.2/24", "fd08::2/64")
	second := w.Cont.Call()
	second.IfName = "eth1"
	const keys = `"vrfname":"blue","table":1001`
	prev := strings.NewReplacer("eth0", "eth1", "10.9.", "10.8.", "fd09", "fd08").Replace(w.PrevResult("[]"))
	w.Result(w.Do(spec.Add, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes)))
	w.Result(w.Do(spec.Add, "vrf", second, `"vrfname":"blue"`, prev))
	w.Result(w.Do(spec.Check, "vrf", second, keys, prev))
	_, err := w.Do(spec.Add, "vrf", second, `"vrfname":"blue","table":1002`, prev)
	w.WantError(err, spec.CodeConfig, "already exist with different routing table 1001")
	_, err = w.Do(spec.Add, "vrf", second, `"vrfname":"red"`, prev)
	w.WantError(err, spec.CodeConfig, "has already a master set")
	if _, err := w.ContConn.Link("red"); err == nil {
		t.Error("the VRF of a refused ADD is there")
	}
	w.Result(w.Do(spec.Del, "vrf", w.Cont.Call(), `"vrfname":""`, "")) // the VRF that has the interface
	w.Result(w.Do(spec.Check, "vrf", second, keys, prev))
	// DEL succeeds without the interface
	w.NoError(w.ContConn.DelLink("eth1"))
	w.Result(w.Do(spec.Del, "vrf", second, keys, ""))
	if _, err := w.ContConn.Link("blue"); err == nil {
		t.Error("the VRF is still there")
	}
}

func TestKernelVRFCheck(t *testing.T) {
	const keys = `"vrfname":"blue","table":1001`
	for name, tt := range map[string]struct {
		spoil func(w *applettest.Veth, vrf *rtnl.Link) rtnl.Op
		want  string
	}{
		"VRF gone": {func(_ *applettest.Veth, vrf *rtnl.Link) rtnl.Op { return rtnl.DropLink(vrf.Index) }, "blue"},
		"VRF down": {func(_ *applettest.Veth, vrf *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(vrf.Index, rtnl.LinkChange{Up: new(false)})
		}, "is down"},
		"no member": {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op {
			return rtnl.ChangeLink(w.Eth0.Index, rtnl.LinkChange{Master: new(uint32(0))})
		}, "failed to find eth0 associated to vrf blue"},
		"address": {func(w *applettest.Veth, _ *rtnl.Link) rtnl.Op {
			return rtnl.DropAddr(w.Eth0.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("fd09::2/64")})
		}, "does not have address fd09::2"},
		"route": {func(*applettest.Veth, *rtnl.Link) rtnl.Op {
			return rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Table: 1001})
		}, "route 192.0.2.0/24 of eth0 is missing in table 1001 of its VRF"},
		"route of another table": {func(*applettest.Veth, *rtnl.Link) rtnl.Op {
			return rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Table: 700})
		}, "missing in table 700"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newVeth(t)
			w.Result(w.Do(spec.Add, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes)))
			vrf, err := w.ContConn.Link("blue")
			w.NoError(err)
			w.NoError(w.ContConn.Do(tt.spoil(w, vrf)))
			before := w.State()
			_, err = w.Do(spec.Check, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes))
			w.WantError(err, spec.CodeCheck, tt.want)
			if after := w.State(); after != before {
				t.Errorf("CHECK changed something:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
	w := newVeth(t)
	w.Result(w.Do(spec.Add, "vrf", w.Cont.Call(), keys, w.PrevResult(vrfRoutes)))
	_, err := w.Do(spec.Check, "vrf", w.Cont.Call(), `"vrfname":"blue","table":1002`, w.PrevResult(vrfRoutes))
	w.WantError(err, spec.CodeCheck, "has table 1001, not 1002")
}

func TestKernelVRFInvalidConf(t *testing.T) {
	w := newVeth(t)
	before := w.State()
	_, err := w.Do(spec.Add, "vrf", w.Cont.Call(), `"vrfname":"blue"`, "")
	w.WantCode(err, spec.CodeConfig)
	_, err = w.Do(spec.Add, "vrf", w.Cont.Call(), `"vrfname":"lo"`, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, "not a VRF")
	call := w.Cont.Call()
	call.IfName = "eth7"
	_, err = w.Do(spec.Add, "vrf", call, `"vrfname":"blue"`, w.PrevResult("[]"))
	w.WantError(err, spec.CodeConfig, "eth7")
	if after := w.State(); after != before {
		t.Errorf("it changed something:\n%s", kerneltest.Diff(before, after))
	}
	w.Result(w.Do(spec.Status, "vrf", spec.Call{}, `"vrfname":"blue"`, ""))
}

// Without the namespace DEL succeeds with any configuration. This test needs no VRF.
func TestKernelVRFDelWithoutNamespace(t *testing.T) {
	for name, path := range applettest.MissingNetNS(t) {
		t.Run(name, func(t *testing.T) {
			w := applettest.NewVeth(t)
			call := w.Cont.Call()
			call.NetNS = path
			w.Result(w.Do(spec.Del, "vrf", call, `"vrfname":"blue"`, w.PrevResult("[]")))
			w.Result(w.Do(spec.Del, "vrf", call, `"table":true`, ""))
			_, err := w.Do(spec.Add, "vrf", call, `"vrfname":"blue"`, w.PrevResult("[]"))
			w.WantError(err, spec.CodeNetNS, "netns")
		})
	}
	w := applettest.NewVeth(t)
	before := w.State()
	w.Result(w.Do(spec.Del, "vrf", w.Cont.Call(), `"vrfname":"blue"`, ""))
	w.Result(w.Do(spec.Del, "vrf", w.Cont.Call(), `"vrfname":"lo"`, ""))
	if after := w.State(); after != before {
		t.Errorf("DEL without a VRF changed something:\n%s", kerneltest.Diff(before, after))
	}
}

func TestKernelVRFWithoutKernelSupport(t *testing.T) {
	w := applettest.NewVeth(t)
	fault.Hook = func(what string) error {
		if strings.Contains(what, "vrf") {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	_, err := w.Do(spec.Add, "vrf", w.Cont.Call(), `"vrfname":"blue"`, w.PrevResult("[]"))
	w.WantError(err, spec.CodeHost, "CONFIG_NET_VRF")
}
