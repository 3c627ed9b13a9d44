package macvlan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func macvlanNode(t *testing.T) (*applettest.Host, applettest.Segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_MACVLAN", rtnl.Macvlan{})
	h := applettest.NewHost(t)
	return h, h.Segment()
}

// Each mode is set, and CHECK reports another one.
func TestKernelMacvlanModes(t *testing.T) {
	h, _ := macvlanNode(t)
	for i, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		conf := applettest.ChildConf("macvlan", `"master":"up0","mode":"`+mode+`"`)
		p := h.Container(fmt.Sprintf("ctr%d", i))
		out := h.Must(spec.Add, "macvlan", conf, p)
		l := kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0")
		if kind, _ := l.Data.(rtnl.Macvlan); kind.Mode.String() != mode {
			t.Errorf("got %+v, want mode %s", l.Data, mode)
		}
		h.Must(spec.Check, "macvlan", applettest.Prev(conf, out), p)
		other := strings.Replace(applettest.Prev(conf, out), `"mode":"`+mode, `"mode":"`+map[bool]string{true: "vepa", false: "bridge"}[mode == "bridge"], 1)
		h.Refuse(102, "in mode "+mode+", not", spec.Check, "macvlan", other, p)
		h.Must(spec.Del, "macvlan", conf, p)
	}
	h.Refuse(7, `mode: \"source\"`, spec.Add, "macvlan", applettest.ChildConf("macvlan", `"master":"up0","mode":"source"`), h.Container("x"))
}

// A passthru macvlan uses its master exclusively and has its MAC address. A configured address is
// set on the master until DEL, and ignored by the reference.
func TestKernelMacvlanPassthru(t *testing.T) {
	h, s := macvlanNode(t)
	own := s.Up0.MAC.String()
	conf := applettest.ChildConf("macvlan", `"master":"up0","mode":"passthru"`)
	p := h.Container("ctr")
	if out := h.Must(spec.Add, "macvlan", conf, p); !strings.Contains(out, own) {
		t.Errorf("the result lacks the master's address %s: %s", own, out)
	}
	h.Refuse(100, "mode passthru is in the way", spec.Add, "macvlan", applettest.ChildConf("macvlan", `"master":"up0"`), h.Container("second"))
	h.Must(spec.Del, "macvlan", conf, p)

	out := h.Must(spec.Add, "macvlan", conf, p, "CNI_ARGS=MAC=02:00:00:00:00:0a")
	if got := kerneltest.Link(t, s.Host, "up0").MAC.String(); got != "02:00:00:00:00:0a" || !strings.Contains(out, got) {
		t.Errorf("the master has %s: %s", got, out)
	}
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, out), p)
	h.Must(spec.Del, "macvlan", conf, p)
	if got := kerneltest.Link(t, s.Host, "up0").MAC.String(); got != own {
		t.Errorf("the master has %s, want %s again", got, own)
	}
}

// The MAC address is from runtimeConfig, else args, else CNI_ARGS, else the key. A second link with
// the same address on a master is refused with the reason.
func TestKernelMacvlanMAC(t *testing.T) {
	h, _ := macvlanNode(t)
	keys := `"master":"up0"`
	for i, tt := range []struct{ more, args string }{
		{`,"mac":"02:00:00:00:00:0%d"`, ""},
		{`,"mac":"02:00:00:00:00:99"`, "MAC=02:00:00:00:00:0%d"},
		{`,"mac":"02:00:00:00:00:99","args":{"cni":{"mac":"02:00:00:00:00:0%d"}}`, "MAC=02:00:00:00:00:98"},
		{`,"args":{"cni":{"mac":"02:00:00:00:00:99"}},"runtimeConfig":{"mac":"02:00:00:00:00:0%d"}`, "MAC=02:00:00:00:00:98"},
	} {
		number := func(s string) string { return strings.ReplaceAll(s, "%d", fmt.Sprint(i)) }
		out := h.Must(spec.Add, "macvlan", applettest.ChildConf("macvlan", keys+number(tt.more)), h.Container(fmt.Sprintf("ctr%d", i)), "CNI_ARGS="+number(tt.args))
		if want := fmt.Sprintf("02:00:00:00:00:0%d", i); !strings.Contains(out, want) {
			t.Errorf("%d: want %s: %s", i, want, out)
		}
	}
	h.Refuse(100, "MAC address 02:00:00:00:00:00, or an IP address, is that of another link", spec.Add, "macvlan",
		applettest.ChildConf("macvlan", keys+`,"mac":"02:00:00:00:00:00"`), h.Container("twin"))
	h.Refuse(7, "multicast", spec.Add, "macvlan", applettest.ChildConf("macvlan", keys+`,"mac":"01:00:00:00:00:00"`), h.Container("bad"))
}

// Without a master, the link of the default route is used, also of a multipath route, with which
// the reference fails. CHECK succeeds, even after the route has changed.
func TestKernelMacvlanAutoMaster(t *testing.T) {
	h, s := macvlanNode(t)
	conf := applettest.ChildConf("macvlan", "")
	h.Refuse(7, "default route", spec.Add, "macvlan", conf, h.Container("x"))
	h.Refuse(50, "default route", spec.Status, "macvlan", conf, h.Container("x"))
	kerneltest.Address(t, h.NS, "up0", "192.0.2.1/24")
	kerneltest.AddMultipath(t, h.NS, s.Up0.Index, "192.0.2.2", "192.0.2.3")
	h.Must(spec.Status, "macvlan", conf, applettest.Container{})
	p := h.Container("ctr")
	out := h.Must(spec.Add, "macvlan", conf, p)
	if l := kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0"); l.Parent != s.Up0.Index {
		t.Errorf("its parent is #%d, want #%d", l.Parent, s.Up0.Index)
	}
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, out), p)
	if err := s.Host.Do(rtnl.DropAddr(s.Up0.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("192.0.2.1/24")})); err != nil {
		t.Fatal(err)
	}
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, out), p)
	h.Must(spec.Del, "macvlan", conf, p)
}

// The MTU is limited by the master's. CHECK compares the configured one, or the one that a later
// plugin added to the result.
func TestKernelMacvlanMTU(t *testing.T) {
	h, _ := macvlanNode(t)
	p := h.Container("ctr")
	for _, mtu := range []string{"-1", "67", "1501"} {
		h.Refuse(7, "invalid MTU "+mtu, spec.Add, "macvlan", applettest.ChildConf("macvlan", `"master":"up0","mtu":`+mtu), p)
	}
	conf := applettest.ChildConf("macvlan", `"master":"up0","mtu":1400`)
	out := h.Must(spec.Add, "macvlan", conf, p)
	if !strings.Contains(out, `"mtu": 1400`) {
		t.Errorf("the result lacks the MTU: %s", out)
	}
	c := kerneltest.Dial(t, p.NS)
	if err := c.SetLink(kerneltest.Link(t, c, "eth0").Index, rtnl.LinkChange{MTU: new(1450)}); err != nil {
		t.Fatal(err)
	}
	h.Refuse(102, "has MTU 1450, not 1400", spec.Check, "macvlan", applettest.Prev(conf, out), p)
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, strings.Replace(out, "1400", "1450", 1)), p)
}

// CHECK compares the master with the configured one.
func TestKernelMacvlanOtherMaster(t *testing.T) {
	h, s := macvlanNode(t)
	if _, err := s.Host.CreateLink(rtnl.LinkSpec{Name: "other0", Peer: &rtnl.LinkSpec{Name: "other1"}}); err != nil {
		t.Fatal(err)
	}
	conf, p := applettest.ChildConf("macvlan", `"master":"up0"`), h.Container("ctr")
	out := h.Must(spec.Add, "macvlan", conf, p)
	h.Refuse(102, "is up0, not other0", spec.Check, "macvlan", strings.Replace(applettest.Prev(conf, out), `"up0"`, `"other0"`, 1), p)
	h.Refuse(102, "none0", spec.Check, "macvlan", strings.Replace(applettest.Prev(conf, out), `"up0"`, `"none0"`, 1), p)
	h.Refuse(102, "wrong network namespace", spec.Check, "macvlan", strings.Replace(applettest.Prev(conf, out), `"name"`, `"linkInContainer":true,"name"`, 1), p)
}

// With linkInContainer the master is in the container.
func TestKernelMacvlanLinkInContainer(t *testing.T) {
	h, _ := macvlanNode(t)
	p := h.Container("ctr")
	c := kerneltest.Dial(t, p.NS)
	in0, err := c.CreateLink(rtnl.LinkSpec{Name: "in0", Up: true, Peer: &rtnl.LinkSpec{Name: "in1"}})
	if err != nil {
		t.Fatal(err)
	}
	conf := applettest.ChildConf("macvlan", `"master":"in0","linkInContainer":true`)
	h.Refuse(7, "looked for", spec.Add, "macvlan", strings.Replace(conf, "true", "false", 1), p)
	before := h.Snapshot(p)
	out := h.Must(spec.Add, "macvlan", conf, p)
	if l := kerneltest.Link(t, c, "eth0"); l.Parent != in0.Index || l.PeerNS {
		t.Errorf("got %+v, want the parent #%d here", l, in0.Index)
	}
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, out), p)
	h.Refuse(100, "already exists", spec.Add, "macvlan", conf, p)
	h.Must(spec.Del, "macvlan", conf, p)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// Another container and another machine on the segment reach the container. Without ipam the link
// is up and has no address.
func TestKernelMacvlanTraffic(t *testing.T) {
	h, s := macvlanNode(t)
	conf := applettest.ChildConf("macvlan", `"master":"up0"`)
	a, b := h.Container("a"), h.Container("b")
	h.Listen(a.NS, a.ID)
	h.Must(spec.Add, "macvlan", conf, a)
	h.Must(spec.Add, "macvlan", conf, b)
	kerneltest.Address(t, s.NS, "up1", "10.1.0.200/24")
	for name, from := range map[string]*netns.NS{"a neighbour": b.NS, "the segment": s.NS} {
		if who := h.Who(from, "10.1.0.2", applettest.Timeout); who != "a" {
			t.Errorf("from %s: %q answers", name, who)
		}
	}
	l2, p := `{"cniVersion":"1.1.0","name":"l2","type":"macvlan","master":"up0"}`, h.Container("l2")
	out := h.Must(spec.Add, "macvlan", l2, p)
	if !kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0").Up || strings.Contains(out, `"ips"`) {
		t.Errorf("layer 2 only: %s", out)
	}
	h.Must(spec.Check, "macvlan", applettest.Prev(l2, out), p)
	h.Refuse(7, "cannot convert", spec.Add, "macvlan", strings.Replace(l2, "1.1.0", "0.2.0", 1), h.Container("old"))
}

// In every plugin, a route without a gateway may be reached through the gateway of an earlier
// route.
func TestKernelMacvlanGatewayRouteFirst(t *testing.T) {
	h, _ := macvlanNode(t)
	p := h.Container("a")
	conf := `{"cniVersion":"1.1.0","name":"demo","type":"macvlan","master":"up0","ipam":{"type":"static",
		"addresses":[{"address":"10.1.0.5/32","gateway":"169.254.1.1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"169.254.1.1/32"}]}}`
	res := h.Must(spec.Add, "macvlan", conf, p)
	h.Must(spec.Check, "macvlan", applettest.Prev(conf, res), p)
	c := kerneltest.Dial(t, p.NS)
	if near, far := kerneltest.Route(t, c, "169.254.1.1/32"), kerneltest.Route(t, c, "0.0.0.0/0"); near.GW.IsValid() || far.GW.String() != "169.254.1.1" {
		t.Errorf("got %s and %s", near, far)
	}
}

// The master may be an alternative name of up to the maximal length.
func TestKernelMacvlanAltName(t *testing.T) {
	for _, name := range []string{"uplink", "sixteen-bytes-xx", strings.Repeat("x", 127)} {
		h, _ := macvlanNode(t)
		kerneltest.AddAltName(t, h.NS, "up0", name)
		p := h.Container("ctr")
		conf := applettest.ChildConf("macvlan", `"master":"`+name+`"`)
		h.Must(spec.Status, "macvlan", conf, applettest.Container{})
		h.Must(spec.Check, "macvlan", applettest.Prev(conf, h.Must(spec.Add, "macvlan", conf, p)), p)
		h.Must(spec.Del, "macvlan", conf, p)
	}
	h, _ := macvlanNode(t)
	h.Refuse(7, "too long", spec.Add, "macvlan", applettest.ChildConf("macvlan", `"master":"`+strings.Repeat("x", 128)+`"`), h.Container("x"))
}

// CHECK warns of a master that is down, as with an unplugged cable, and fails if it is gone.
func TestKernelMasterDown(t *testing.T) {
	for _, plugin := range []string{"macvlan", "ipvlan"} {
		t.Run(plugin, func(t *testing.T) {
			applettest.Plugins[plugin].Need(t)
			h := applettest.NewHost(t)
			s := h.Segment()
			conf := applettest.ChildConf(plugin, `"master":"up0"`)
			p := h.Container("ctr")
			out := h.Must(spec.Add, plugin, conf, p)
			var warned strings.Builder
			h.Stderr = &warned
			h.Must(spec.Check, plugin, applettest.Prev(conf, out), p)
			if warned.Len() > 0 {
				t.Errorf("CHECK of a master that is up warns: %s", &warned)
			}
			h.NoError(s.Host.SetLink(kerneltest.Link(t, s.Host, "up0").Index, rtnl.LinkChange{Up: new(false)}))
			h.Must(spec.Check, plugin, applettest.Prev(conf, out), p)
			if !strings.Contains(warned.String(), "master up0 of eth0 is down") {
				t.Errorf("no warning: %q", &warned)
			}
			h.NoError(s.Host.DelLink("up0"))
			h.Refuse(102, "eth0", spec.Check, plugin, applettest.Prev(conf, out), p)
		})
	}
}
