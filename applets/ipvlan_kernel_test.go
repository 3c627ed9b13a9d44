//go:build !no_ipvlan

package applets_test

import (
	"fmt"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	addChild("ipvlan", `,"master":"up0"`, "CONFIG_IPVLAN", rtnl.Ipvlan{})
	rollbackConfs["ipvlan"] = childConf("ipvlan", `,"master":"up0","mode":"l3s","flag":"private"`)
}

func ipvlanNode(t *testing.T) (*node, segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_IPVLAN", rtnl.Ipvlan{})
	n := newNode(t)
	return n, n.segment()
}

// Every mode and flag is what it is called, and CHECK sees those that are not.
func TestKernelIpvlanModes(t *testing.T) {
	n, s := ipvlanNode(t)
	for i, tt := range [][2]string{{"", ""}, {"l2", "bridge"}, {"l2", "private"}, {"l3", "vepa"}, {"l3s", "private"}} {
		keys := fmt.Sprintf(`,"master":"up0","mode":%q,"flag":%q`, tt[0], tt[1])
		conf, p := childConf("ipvlan", keys), n.pod(fmt.Sprintf("ctr%d", i))
		out := n.must(spec.Add, "ipvlan", conf, p)
		l := linkOf(t, kerneltest.Dial(t, p.ns), "eth0")
		mode, _ := rtnl.ParseIpvlanMode(tt[0])
		flag, _ := rtnl.ParseIpvlanFlag(tt[1])
		if want := (rtnl.Ipvlan{Mode: mode, Flag: flag}); l.Data != want {
			t.Errorf("got %+v, want %+v", l.Data, want)
		}
		if l.MAC.String() != s.up0.MAC.String() {
			t.Errorf("it has the address %s, want the master's", l.MAC)
		}
		n.must(spec.Check, "ipvlan", prev(conf, out), p)
		if mode == rtnl.IpvlanL2 {
			n.refuse(102, "in mode l2, not l3s", spec.Check, "ipvlan", strings.Replace(prev(conf, out), `"mode":"`+tt[0], `"mode":"l3s`, 1), p)
		}
		if flag == rtnl.IpvlanPrivate {
			n.refuse(102, "with flag private, not vepa", spec.Check, "ipvlan", strings.Replace(prev(conf, out), "private", "vepa", 1), p)
		}
		n.must(spec.Del, "ipvlan", conf, p)
	}
	n.refuse(7, `unknown ipvlan mode: \"L2\"`, spec.Add, "ipvlan", childConf("ipvlan", `,"master":"up0","mode":"L2"`), n.pod("x"))
	n.refuse(7, `unknown ipvlan flag`, spec.Add, "ipvlan", childConf("ipvlan", `,"master":"up0","flag":"x"`), n.pod("x"))
	n.refuse(7, `invalid MTU 1501`, spec.Add, "ipvlan", childConf("ipvlan", `,"master":"up0","mtu":1501`), n.pod("x"))
}

// chained is a configuration whose master and addresses are prevResult's.
const Interface = `{"cniVersion":"1.1.0","name":"demo","type":"ipvlan","prevResult":{"cniVersion":"1.1.0",
	"interfaces":[{"name":"up0"}],"ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16"}],
	"dns":{"nameservers":["10.1.0.53"]}}}`

// Behind another plugin its addresses are used, its one interface is the master, and
// is replaced in the result.
func TestKernelIpvlanChained(t *testing.T) {
	n, s := ipvlanNode(t)
	p := n.pod("ctr")
	before := n.state(p)
	out := n.must(spec.Add, "ipvlan", Interface, p)
	c := kerneltest.Dial(t, p.ns)
	if l := linkOf(t, c, "eth0"); l.Parent != s.up0.Index {
		t.Errorf("it sits on #%d, want #%d", l.Parent, s.up0.Index)
	}
	addrsOf(t, c, linkOf(t, c, "eth0").Index, "10.1.0.9/24")
	if r := routeTo(t, c, "10.9.0.0/16"); r.GW.String() != "10.1.0.1" {
		t.Errorf("got route %s", r)
	}
	for _, want := range []string{`"interface": 0`, `"name": "eth0"`, `"10.1.0.53"`} {
		if !strings.Contains(out, want) || strings.Contains(out, "up0") {
			t.Errorf("the result lacks %s, or has up0: %s", want, out)
		}
	}
	// [S] the reference's CHECK fails with a master that is not configured
	alone := `{"cniVersion":"1.1.0","name":"demo","type":"ipvlan"}`
	n.must(spec.Check, "ipvlan", prev(alone, out), p)
	n.must(spec.Status, "ipvlan", alone, pod{})
	// [S] its DEL looks for a default route without prevResult
	n.must(spec.Del, "ipvlan", alone, p)
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	n.refuse(7, "requires an IPAM configuration", spec.Add, "ipvlan", alone, p)
	n.refuse(7, "chained master failure", spec.Add, "ipvlan", strings.Replace(Interface, `{"name":"up0"}`, `{"name":"up0"},{"name":"b"}`, 1), p)
	n.refuse(7, "chained master failure", spec.Add, "ipvlan", strings.Replace(Interface, `{"name":"up0"}`, ``, 1), p)
	// versions that need an address have one
	old := strings.NewReplacer("1.1.0", "0.2.0", `"interfaces":[{"name":"up0"}],"ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16"}]`,
		`"ip4":{"ip":"10.1.0.9/24"}`, `"name"`, `"master":"up0","name"`).Replace(Interface)
	if out := n.must(spec.Add, "ipvlan", old, p); !strings.Contains(out, `"ip": "10.1.0.9/24"`) {
		t.Errorf("got %s", out)
	}
}

// Two containers reach each other, and somebody on the segment in l2 mode.
func TestKernelIpvlanTraffic(t *testing.T) {
	n, s := ipvlanNode(t)
	conf := childConf("ipvlan", `,"master":"up0"`)
	a, b := n.pod("a"), n.pod("b")
	n.echo(a)
	n.must(spec.Add, "ipvlan", conf, a)
	n.must(spec.Add, "ipvlan", conf, b)
	if err := s.wire.AddAddr(s.up1.Index, rtnl.Addr{Prefix: prefix("10.1.0.200/24")}); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]*rtnl.NS{"a neighbour": b.ns, "the segment": s.ns} {
		if who := ask(t, from, "10.1.0.2", patience); who != "a" {
			t.Errorf("from %s: %q answers", name, who)
		}
	}
}

// A failure in the container's namespace is told as what it is; the reference says
// that a link could not be renamed [S].
func TestKernelIpvlanLinkInContainer(t *testing.T) {
	n, _ := ipvlanNode(t)
	p := n.pod("ctr")
	c := kerneltest.Dial(t, p.ns)
	if _, err := c.CreateLink(rtnl.LinkSpec{Name: "in0", Up: true, Peer: &rtnl.LinkSpec{Name: "in1", Up: true}}); err != nil {
		t.Fatal(err)
	}
	conf := childConf("ipvlan", `,"master":"in0","linkInContainer":true`)
	before := n.state(p)
	out := n.must(spec.Add, "ipvlan", conf, p, "CNI_ARGS=MAC=02:00:00:00:00:01")
	n.must(spec.Check, "ipvlan", prev(conf, out), p)
	n.must(spec.Del, "ipvlan", conf, p)
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	if err := c.AddLink(rtnl.LinkSpec{Name: "mv0", Kind: rtnl.Macvlan{Mode: rtnl.MacvlanBridge}, Parent: linkOf(t, c, "in0").Index}); err != nil {
		t.Skipf("SKIPPED: no macvlan: %v", err)
	}
	n.refuse(100, "master in0 is taken", spec.Add, "ipvlan", conf, p)
}

// A host that knew the address by another link's MAC address and asks nobody again
// reaches its new owner, though an ipvlan cannot announce itself as other links do.
func TestKernelIpvlanReusedAddress(t *testing.T) {
	n, s := ipvlanNode(t)
	kerneltest.NeedKind(t, "CONFIG_MACVLAN", rtnl.Macvlan{})
	old := childConf("macvlan", `,"master":"up0"`)
	conf := childConf("ipvlan", `,"master":"up0"`)
	if err := s.wire.AddAddr(s.up1.Index, rtnl.Addr{Prefix: prefix("10.1.0.200/24")}); err != nil {
		t.Fatal(err)
	}
	trusting(t, s.ns, "up1")
	for _, owner := range []struct{ applet, conf string }{{"macvlan", old}, {"ipvlan", conf}} {
		conf := strings.Replace(owner.conf, `"ipam"`, `"args":{"cni":{"ips":["10.1.0.77"]}},"ipam"`, 1)
		p := n.pod(owner.applet)
		n.echo(p)
		n.must(spec.Add, owner.applet, conf, p)
		if who := ask(t, s.ns, "10.1.0.77", patience); who != p.id {
			t.Errorf("%q answers, want %s", who, p.id)
		}
		n.must(spec.Del, owner.applet, conf, p)
	}
}
