package applets_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// eachChild runs a test on a new host for each plugin whose link has no part on the host.
func eachChild(t *testing.T, test func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string)) {
	for _, name := range applettest.Children() {
		t.Run(name, func(t *testing.T) {
			p := applettest.Plugins[name]
			p.Need(t)
			h := applettest.NewHost(t)
			test(t, h, h.Segment(), name, applettest.ChildConf(name, p.Keys))
		})
	}
}

// kindOf returns the kernel's name for the link type of a plugin.
func kindOf(plugin string) string {
	return strings.ToLower(reflect.TypeOf(applettest.Plugins[plugin].Kind).Name())
}

// mtuOf returns the MTU of a configuration, or that of the host's links.
func mtuOf(t *testing.T, conf string) int {
	t.Helper()
	var own struct{ MTU int }
	if err := json.Unmarshal([]byte(conf), &own); err != nil {
		t.Fatal(err)
	}
	return cmp.Or(own.MTU, 1500)
}

// hasMaster reports whether a plugin has the key master.
func hasMaster(plugin string) bool {
	return strings.Contains(applettest.Plugins[plugin].Keys, `"master"`)
}

// After ADD the link has its name, master, address, route and DNS. The reference loses the DNS of
// the IPAM plugin. GET returns the result of ADD, and CHECK succeeds.
func TestKernelChildAdd(t *testing.T) {
	eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
		p := h.Container("ctr")
		out := h.Must(spec.Add, plugin, conf, p)
		c := kerneltest.Dial(t, p.NS)
		l, err := c.Link("eth0")
		if err != nil || l.Kind != kindOf(plugin) || !l.Up {
			t.Fatalf("got %+v, %v", l, err)
		}
		if hasMaster(plugin) && (l.Parent != s.Up0.Index || !l.PeerNS) {
			t.Errorf("its parent is #%d, want #%d", l.Parent, s.Up0.Index)
		}
		for _, want := range []string{l.MAC.String(), fmt.Sprintf(`"mtu": %d`, mtuOf(t, conf)), `"10.1.0.2/24"`, `"10.1.0.53"`, p.Path, `"interface": 0`} {
			if !strings.Contains(out, want) {
				t.Errorf("the result lacks %s: %s", want, out)
			}
		}
		if got := h.Must(spec.Get, plugin, conf, p); got != out {
			t.Errorf("GET answers %s, want %s", got, out)
		}
		own := strings.Replace(conf, `"ipam"`, `"dns":{"nameservers":["192.0.2.53"]},"ipam"`, 1)
		if got := h.Must(spec.Get, plugin, own, p); strings.Contains(got, "10.1.0.53") || !strings.Contains(got, "192.0.2.53") {
			t.Errorf("a configured dns does not replace that of ipam: %s", got)
		}
		none := strings.Replace(conf, `"ipam"`, `"dns":{"nameservers":[]},"ipam"`, 1)
		if got := h.Must(spec.Get, plugin, none, p); strings.Contains(got, "10.1.0.53") {
			t.Errorf("a configured dns with an empty list does not replace that of ipam: %s", got)
		}
		h.Must(spec.Check, plugin, applettest.Prev(conf, out), p)
		h.Refuse(100, `\"eth0\" already exists`, spec.Add, plugin, conf, p)
	})
}

// CHECK reports whatever is missing.
func TestKernelChildCheck(t *testing.T) {
	eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
		p := h.Container("ctr")
		c := kerneltest.Dial(t, p.NS)
		eth0 := func() uint32 { return kerneltest.Link(t, c, "eth0").Index }
		for want, harm := range map[string]func() error{
			"no interface eth0":           func() error { return c.DelLink("eth0") },
			"is down":                     func() error { return c.SetLink(eth0(), rtnl.LinkChange{Up: new(false)}) },
			"does not have address 10.1.": func() error { return c.Do(rtnl.DropAddr(eth0(), kerneltest.Addr(t, c, eth0(), "10.1."))) },
			"route 10.9.0.0/16":           func() error { return c.Do(rtnl.DropRoute(kerneltest.Route(t, c, "10.9.0.0/16"))) },
			"host-local":                  func() error { return os.RemoveAll(filepath.Join(h.Dir, "demo")) },
		} {
			result := h.Must(spec.Add, plugin, conf, p)
			h.Must(spec.Check, plugin, applettest.Prev(conf, result), p)
			if err := harm(); err != nil {
				t.Fatalf("%s: %v", want, err)
			}
			if want == "is down" { // the kernel deleted its route too
				conf := strings.Replace(applettest.Prev(conf, result), `"routes"`, `"other"`, -1)
				h.Refuse(102, want, spec.Check, plugin, conf, p)
			} else if code, out := h.Call(spec.Check, plugin, applettest.Prev(conf, result), p); code == 0 || !strings.Contains(out, want) {
				t.Errorf("CHECK answers %d %s, want %q", code, out, want)
			}
			h.Must(spec.Del, plugin, conf, p)
		}
	})
}

// A failing IPAM plugin leaves no link; macvlan, ipvlan and vlan of the reference leave theirs.
func TestKernelChildExhausted(t *testing.T) {
	eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
		conf = strings.Replace(conf, `"subnet":"10.1.0.0/24"`, `"subnet":"10.1.0.0/30","rangeStart":"10.1.0.2"`, 1)
		other := strings.Replace(conf, `"type":"`+plugin+`"`, `"type":"host-local"`, 1)
		h.Must(spec.Add, "host-local", other, applettest.Container{ID: "first", Path: "/nonexistent"})
		h.Refuse(101, "10.1.0.2-10.1.0.2", spec.Add, plugin, conf, h.Container("ctr"))
	})
}

// STATUS and ADD report a missing master.
func TestKernelChildStatus(t *testing.T) {
	eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
		h.Must(spec.Status, plugin, conf, applettest.Container{})
		if !hasMaster(plugin) {
			return
		}
		if err := s.Host.DelLink("up0"); err != nil {
			t.Fatal(err)
		}
		h.Refuse(50, `master \"up0\"`, spec.Status, plugin, conf, h.Container("any"))
		h.Refuse(7, `master \"up0\"`, spec.Add, plugin, conf, h.Container("any"))
		h.Must(spec.Status, plugin, strings.Replace(conf, `"name"`, `"linkInContainer":true,"name"`, 1), applettest.Container{})
	})
}

// Without kernel support for the link type, STATUS and ADD return the same error.
func TestKernelChildWithoutKernelSupport(t *testing.T) {
	for _, name := range applettest.Children() {
		t.Run(name, func(t *testing.T) {
			c := applettest.Plugins[name]
			h := applettest.NewHost(t)
			h.Segment()
			if err := kerneltest.Dial(t, h.NS).AddLink(rtnl.LinkSpec{Name: "probe0", Kind: c.Kind}); !errors.Is(err, unix.EOPNOTSUPP) {
				t.Skipf("SKIPPED: this kernel has links of kind %s: %v", name, err)
			}
			conf := applettest.ChildConf(name, c.Keys)
			h.Refuse(50, "this kernel does not support this type of link", spec.Status, name, conf, h.Container("any"))
			h.Refuse(spec.CodeHost, "this kernel does not support this type of link", spec.Add, name, conf, h.Container("any"))
		})
	}
}

// A duplicate IPv6 address is an error and leaves nothing. A unique one is usable when ADD returns.
func TestKernelChildDuplicateAddress(t *testing.T) {
	eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
		if !hasMaster(plugin) || plugin == "vlan" { // no other machine, or not in the VLAN
			return
		}
		conf = strings.NewReplacer("10.1.0.0/24", "fd00:1::/64", `"10.9.0.0/16"`, `"fd00:9::/64"`, "10.1.0.1", "fd00:1::1").Replace(conf)
		taken := rtnl.Addr{Prefix: netip.MustParsePrefix("fd00:1::2/64"), NoDAD: true}
		if err := s.Remote.AddAddr(s.Up1.Index, taken); err != nil {
			t.Fatal(err)
		}
		kerneltest.Solicited(t, s.NS, netip.MustParseAddr("fd00:1::2"), 1)
		first := h.Container("ctr")
		applettest.SetDAD(t, first.NS, "1", "3") // time for a late answer
		h.Refuse(100, "duplicate address", spec.Add, plugin, conf, first)
		p := h.Container("ctr")
		out := h.Must(spec.Add, plugin, conf, p)
		addr := kerneltest.Addr(t, kerneltest.Dial(t, p.NS), kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0").Index, "fd00:1::3")
		if addr.Tentative || addr.DADFailed || addr.NoDAD {
			t.Errorf("got %+v after %s", addr, out)
		}
		h.Must(spec.Del, plugin, conf, p)
		// Without a carrier, duplicate address detection does not run: ADD succeeds, and the
		// address stays tentative.
		if err := s.Remote.SetLink(s.Up1.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		h.Stderr = &stderr
		h.Must(spec.Add, plugin, conf, h.Container("late"))
		if !strings.Contains(stderr.String(), "has no carrier: its addresses are tentative") {
			t.Errorf("ADD without carrier says %q", stderr.String())
		}
	})
}

// CHECK warns if the master is down, on the host or in the container: it drops all packets,
// although the link stays up. A VLAN goes down with its master, which is an error.
func TestKernelChildMasterDown(t *testing.T) {
	for _, inContainer := range []bool{false, true} {
		eachChild(t, func(t *testing.T, h *applettest.Host, s applettest.Segment, plugin, conf string) {
			if !hasMaster(plugin) {
				return
			}
			p := h.Container("ctr")
			c := s.Host
			if inContainer {
				c = kerneltest.Dial(t, p.NS)
				conf = strings.Replace(conf, `"name"`, `"linkInContainer":true,"name"`, 1)
				if err := s.Host.SetLink(s.Up0.Index, rtnl.LinkChange{NS: p.NS, Name: new("up0")}); err != nil {
					t.Fatal(err)
				}
				if err := c.SetLink(kerneltest.Link(t, c, "up0").Index, rtnl.LinkChange{Up: new(true)}); err != nil {
					t.Fatal(err)
				}
			}
			result := h.Must(spec.Add, plugin, conf, p)
			h.Must(spec.Check, plugin, applettest.Prev(conf, result), p)
			up0 := kerneltest.Link(t, c, "up0").Index
			if err := c.SetLink(up0, rtnl.LinkChange{Up: new(false)}); err != nil {
				t.Fatal(err)
			}
			if plugin == "vlan" { // the kernel deleted its routes
				h.Refuse(102, "is down", spec.Check, plugin, strings.Replace(applettest.Prev(conf, result), `"routes"`, `"other"`, -1), p)
				return
			}
			var warned strings.Builder
			h.Stderr = &warned
			h.Must(spec.Check, plugin, applettest.Prev(conf, result), p)
			if !strings.Contains(warned.String(), "master up0 of eth0 is down") {
				t.Errorf("no warning: %q", &warned)
			}
			if err := c.SetLink(up0, rtnl.LinkChange{Up: new(true)}); err != nil {
				t.Fatal(err)
			}
			h.Must(spec.Check, plugin, applettest.Prev(conf, result), p)
		})
	}
}

// Runtimes call DEL after a failed ADD: it must not delete a link of that name which another
// network owns, as the reference does. A link without a label, as the reference makes it, is
// deleted. GC that runs in the container's namespace deletes none.
func TestKernelDelOfOtherNetwork(t *testing.T) {
	for _, name := range append(applettest.Children(), "tap") {
		t.Run(name, func(t *testing.T) {
			c := applettest.Plugins[name]
			c.Need(t)
			h := applettest.NewHost(t)
			h.Segment()
			p := h.Container("ctr")
			cont := kerneltest.Dial(t, p.NS)
			mine := applettest.ChildConf(name, c.Keys)
			other := strings.Replace(mine, `"name":"demo"`, `"name":"other"`, 1)
			there := func() bool { _, err := cont.Link("eth0"); return err == nil }

			res := h.Must(spec.Add, name, mine, p)
			h.Refuse(100, "already exists", spec.Add, name, other, p)
			h.Must(spec.Del, name, other, p)
			if !there() {
				t.Fatal("the DEL of another network deleted the link")
			}
			h.Must(spec.Check, name, applettest.Prev(mine, res), p)
			inner := applettest.Host{T: t, NS: p.NS, Dir: h.Dir}
			gc := strings.Replace(mine, `"name":`, `"cni.dev/valid-attachments":[],"name":`, 1)
			if inner.Must(spec.GC, name, gc, applettest.Container{}); !there() {
				t.Fatal("GC within the container deleted its link")
			}
			h.Must(spec.Del, name, mine, p)
			if there() {
				t.Error("DEL left the link")
			}
			h.Must(spec.Add, name, mine, p)
			if err := cont.SetLink(kerneltest.Link(t, cont, "eth0").Index, rtnl.LinkChange{Alias: new("uplink")}); err != nil {
				t.Fatal(err)
			}
			if h.Must(spec.Del, name, mine, p); there() {
				t.Error("DEL left a link without a label")
			}
		})
	}
}
