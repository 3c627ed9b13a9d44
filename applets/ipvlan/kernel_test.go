package ipvlan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func ipvlanNode(t *testing.T) (*applettest.Host, applettest.Segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_IPVLAN", rtnl.Ipvlan{})
	h := applettest.NewHost(t)
	return h, h.Segment()
}

// Each mode and flag is set, and CHECK reports another one.
func TestKernelIpvlanModes(t *testing.T) {
	h, s := ipvlanNode(t)
	for i, tt := range [][2]string{{"", ""}, {"l2", "bridge"}, {"l2", "private"}, {"l3", "vepa"}, {"l3s", "private"}} {
		keys := fmt.Sprintf(`"master":"up0","mode":%q,"flag":%q`, tt[0], tt[1])
		conf, p := applettest.ChildConf("ipvlan", keys), h.Container(fmt.Sprintf("ctr%d", i))
		out := h.Must(spec.Add, "ipvlan", conf, p)
		l := kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0")
		mode, _ := rtnl.ParseIpvlanMode(tt[0])
		flag, _ := rtnl.ParseIpvlanFlag(tt[1])
		if want := (rtnl.Ipvlan{Mode: mode, Flag: flag}); l.Data != want {
			t.Errorf("got %+v, want %+v", l.Data, want)
		}
		if l.MAC.String() != s.Up0.MAC.String() {
			t.Errorf("it has the address %s, want the master's", l.MAC)
		}
		h.Must(spec.Check, "ipvlan", applettest.Prev(conf, out), p)
		if mode == rtnl.IpvlanL2 {
			h.Refuse(102, "in mode l2, not l3s", spec.Check, "ipvlan", strings.Replace(applettest.Prev(conf, out), `"mode":"`+tt[0], `"mode":"l3s`, 1), p)
		}
		if flag == rtnl.IpvlanPrivate {
			h.Refuse(102, "with flag private, not vepa", spec.Check, "ipvlan", strings.Replace(applettest.Prev(conf, out), "private", "vepa", 1), p)
		}
		h.Must(spec.Del, "ipvlan", conf, p)
	}
	h.Refuse(7, `mode: \"L2\"`, spec.Add, "ipvlan", applettest.ChildConf("ipvlan", `"master":"up0","mode":"L2"`), h.Container("x"))
	h.Refuse(7, `unknown ipvlan flag`, spec.Add, "ipvlan", applettest.ChildConf("ipvlan", `"master":"up0","flag":"x"`), h.Container("x"))
	h.Refuse(7, `invalid MTU 1501`, spec.Add, "ipvlan", applettest.ChildConf("ipvlan", `"master":"up0","mtu":1501`), h.Container("x"))
}

// chainedConf is a configuration whose prevResult has the master and the addresses.
const chainedConf = `{"cniVersion":"1.1.0","name":"demo","type":"ipvlan","prevResult":{"cniVersion":"1.1.0",
	"interfaces":[{"name":"up0"}],"ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16"}],
	"dns":{"nameservers":["10.1.0.53"]}}}`

// As a chained plugin, ipvlan uses the addresses of prevResult. Its interface is the master, and is
// replaced in the result.
func TestKernelIpvlanChained(t *testing.T) {
	h, s := ipvlanNode(t)
	p := h.Container("ctr")
	before := h.Snapshot(p)
	out := h.Must(spec.Add, "ipvlan", chainedConf, p)
	c := kerneltest.Dial(t, p.NS)
	if l := kerneltest.Link(t, c, "eth0"); l.Parent != s.Up0.Index {
		t.Errorf("its parent is #%d, want #%d", l.Parent, s.Up0.Index)
	}
	kerneltest.Addr(t, c, kerneltest.Link(t, c, "eth0").Index, "10.1.0.9/24")
	if r := kerneltest.Route(t, c, "10.9.0.0/16"); r.GW.String() != "10.1.0.1" {
		t.Errorf("got route %s", r)
	}
	for _, want := range []string{`"interface": 0`, `"name": "eth0"`, `"10.1.0.53"`} {
		if !strings.Contains(out, want) || strings.Contains(out, "up0") {
			t.Errorf("the result lacks %s, or has up0: %s", want, out)
		}
	}
	// CHECK of the reference fails if the master is not configured,
	alone := `{"cniVersion":"1.1.0","name":"demo","type":"ipvlan"}`
	h.Must(spec.Check, "ipvlan", applettest.Prev(alone, out), p)
	h.Must(spec.Status, "ipvlan", alone, applettest.Container{})
	// and its DEL looks for a default route without prevResult.
	h.Must(spec.Del, "ipvlan", alone, p)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	h.Refuse(7, "", spec.Add, "ipvlan", alone, p)
	h.Refuse(7, "chained master", spec.Add, "ipvlan", strings.Replace(chainedConf, `{"name":"up0"}`, `{"name":"up0"},{"name":"b"}`, 1), p)
	h.Refuse(7, "chained master", spec.Add, "ipvlan", strings.Replace(chainedConf, `{"name":"up0"}`, ``, 1), p)
	// Versions in which ips are required
	old := strings.NewReplacer("1.1.0", "0.2.0", `"interfaces":[{"name":"up0"}],"ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16"}]`,
		`"ip4":{"ip":"10.1.0.9/24"}`, `"name"`, `"master":"up0","name"`).Replace(chainedConf)
	if out := h.Must(spec.Add, "ipvlan", old, p); !strings.Contains(out, `"ip": "10.1.0.9/24"`) {
		t.Errorf("got %s", out)
	}
}

// In mode l2, another container and another machine on the segment reach the container.
func TestKernelIpvlanTraffic(t *testing.T) {
	h, s := ipvlanNode(t)
	conf := applettest.ChildConf("ipvlan", `"master":"up0"`)
	a, b := h.Container("a"), h.Container("b")
	h.Listen(a.NS, a.ID)
	h.Must(spec.Add, "ipvlan", conf, a)
	h.Must(spec.Add, "ipvlan", conf, b)
	kerneltest.Address(t, s.NS, "up1", "10.1.0.200/24")
	for name, from := range map[string]*netns.NS{"a neighbour": b.NS, "the segment": s.NS} {
		if who := h.Who(from, "10.1.0.2", applettest.Timeout); who != "a" {
			t.Errorf("from %s: %q answers", name, who)
		}
	}
}

// With linkInContainer the master is in the container. An error is the kernel's; the reference
// reports that a link could not be renamed.
func TestKernelIpvlanLinkInContainer(t *testing.T) {
	h, _ := ipvlanNode(t)
	p := h.Container("ctr")
	c := kerneltest.Dial(t, p.NS)
	if _, err := c.CreateLink(rtnl.LinkSpec{Name: "in0", Up: true, Peer: &rtnl.LinkSpec{Name: "in1", Up: true}}); err != nil {
		t.Fatal(err)
	}
	conf := applettest.ChildConf("ipvlan", `"master":"in0","linkInContainer":true`)
	before := h.Snapshot(p)
	out := h.Must(spec.Add, "ipvlan", conf, p, "CNI_ARGS=MAC=02:00:00:00:00:01")
	h.Must(spec.Check, "ipvlan", applettest.Prev(conf, out), p)
	h.Must(spec.Del, "ipvlan", conf, p)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	if err := c.AddLink(rtnl.LinkSpec{Name: "mv0", Kind: rtnl.Macvlan{Mode: rtnl.MacvlanBridge}, Parent: kerneltest.Link(t, c, "in0").Index}); err != nil {
		t.Skipf("SKIPPED: no macvlan: %v", err)
	}
	h.Refuse(100, "master in0 is taken", spec.Add, "ipvlan", conf, p)
}

// A machine that has the address as a neighbour with another MAC address, and does not probe,
// reaches the new owner. It is announced, although an ipvlan cannot announce it as other links do.
func TestKernelIpvlanReusedAddress(t *testing.T) {
	h, s := ipvlanNode(t)
	kerneltest.NeedKind(t, "CONFIG_MACVLAN", rtnl.Macvlan{})
	old := applettest.ChildConf("macvlan", `"master":"up0"`)
	conf := applettest.ChildConf("ipvlan", `"master":"up0"`)
	kerneltest.Address(t, s.NS, "up1", "10.1.0.200/24")
	applettest.NoProbes(t, s.NS, "up1")
	for _, owner := range []struct{ applet, conf string }{{"macvlan", old}, {"ipvlan", conf}} {
		conf := strings.Replace(owner.conf, `"ipam"`, `"args":{"cni":{"ips":["10.1.0.77"]}},"ipam"`, 1)
		p := h.Container(owner.applet)
		h.Listen(p.NS, p.ID)
		h.Must(spec.Add, owner.applet, conf, p)
		if who := h.Who(s.NS, "10.1.0.77", applettest.Timeout); who != p.ID {
			t.Errorf("%q answers, want %s", who, p.ID)
		}
		h.Must(spec.Del, owner.applet, conf, p)
	}
}
