//go:build !no_macvlan

package applets_test

import (
	"fmt"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

const macvlanKeys = `,"master":"up0","bcqueuelen":77,"mac":"02:00:00:00:00:05"`

func init() {
	addChild("macvlan", macvlanKeys, "CONFIG_MACVLAN", rtnl.Macvlan{})
	rollbackConfs["macvlan"] = childConf("macvlan", `,"master":"up0"`)
	rollbackConfs["macvlan-passthru-alone"] = `{"cniVersion":"1.1.0","name":"demo","type":"macvlan","master":"up0","mode":"passthru","mac":"02:00:00:00:00:06",
		"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"fd00:9::/64"}]}}`
	rollbackConfs["macvlan-l2"] = `{"cniVersion":"1.1.0","name":"demo","type":"macvlan","master":"up0"}`
}

func macvlanNode(t *testing.T) (*node, segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_MACVLAN", rtnl.Macvlan{})
	n := newNode(t)
	return n, n.segment()
}

// Every mode is what it is called, and CHECK sees one that is not.
func TestKernelMacvlanModes(t *testing.T) {
	n, _ := macvlanNode(t)
	for i, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		conf := childConf("macvlan", `,"master":"up0","mode":"`+mode+`"`)
		p := n.pod(fmt.Sprintf("ctr%d", i))
		out := n.must(spec.Add, "macvlan", conf, p)
		l := linkOf(t, kerneltest.Dial(t, p.ns), "eth0")
		if kind, _ := l.Data.(rtnl.Macvlan); kind.Mode.String() != mode {
			t.Errorf("got %+v, want mode %s", l.Data, mode)
		}
		n.must(spec.Check, "macvlan", prev(conf, out), p)
		other := strings.Replace(prev(conf, out), `"mode":"`+mode, `"mode":"`+map[bool]string{true: "vepa", false: "bridge"}[mode == "bridge"], 1)
		n.refuse(102, "in mode "+mode+", not", spec.Check, "macvlan", other, p)
		n.must(spec.Del, "macvlan", conf, p)
	}
	n.refuse(7, `unknown macvlan mode: \"source\"`, spec.Add, "macvlan", childConf("macvlan", `,"master":"up0","mode":"source"`), n.pod("x"))
}

// A passthru macvlan has the master for itself, and its address; one that is asked for
// the master has until DEL. The reference leaves it out.
func TestKernelMacvlanPassthru(t *testing.T) {
	n, s := macvlanNode(t)
	own := s.up0.MAC.String()
	conf := childConf("macvlan", `,"master":"up0","mode":"passthru"`)
	p := n.pod("ctr")
	if out := n.must(spec.Add, "macvlan", conf, p); !strings.Contains(out, own) {
		t.Errorf("the result lacks the master's address %s: %s", own, out)
	}
	n.refuse(100, "mode passthru is in the way", spec.Add, "macvlan", childConf("macvlan", `,"master":"up0"`), n.pod("second"))
	n.must(spec.Del, "macvlan", conf, p)

	out := n.must(spec.Add, "macvlan", conf, p, "CNI_ARGS=MAC=02:00:00:00:00:0a")
	if got := linkOf(t, s.host, "up0").MAC.String(); got != "02:00:00:00:00:0a" || !strings.Contains(out, got) {
		t.Errorf("the master has %s: %s", got, out)
	}
	n.must(spec.Check, "macvlan", prev(conf, out), p)
	n.must(spec.Del, "macvlan", conf, p)
	if got := linkOf(t, s.host, "up0").MAC.String(); got != own {
		t.Errorf("the master has %s, want %s again", got, own)
	}
}

// runtimeConfig, then args, then CNI_ARGS, then the key; two with one address on a
// master are refused, and told why.
func TestKernelMacvlanMAC(t *testing.T) {
	n, _ := macvlanNode(t)
	keys := `,"master":"up0"`
	for i, tt := range []struct{ more, args string }{
		{`,"mac":"02:00:00:00:00:0%d"`, ""},
		{`,"mac":"02:00:00:00:00:99"`, "MAC=02:00:00:00:00:0%d"},
		{`,"mac":"02:00:00:00:00:99","args":{"cni":{"mac":"02:00:00:00:00:0%d"}}`, "MAC=02:00:00:00:00:98"},
		{`,"args":{"cni":{"mac":"02:00:00:00:00:99"}},"runtimeConfig":{"mac":"02:00:00:00:00:0%d"}`, "MAC=02:00:00:00:00:98"},
	} {
		number := func(s string) string { return strings.ReplaceAll(s, "%d", fmt.Sprint(i)) }
		out := n.must(spec.Add, "macvlan", childConf("macvlan", keys+number(tt.more)), n.pod(fmt.Sprintf("ctr%d", i)), "CNI_ARGS="+number(tt.args))
		if want := fmt.Sprintf("02:00:00:00:00:0%d", i); !strings.Contains(out, want) {
			t.Errorf("%d: want %s: %s", i, want, out)
		}
	}
	n.refuse(100, "MAC address 02:00:00:00:00:00, or an IP address, is that of another link", spec.Add, "macvlan",
		childConf("macvlan", keys+`,"mac":"02:00:00:00:00:00"`), n.pod("twin"))
	n.refuse(7, "multicast", spec.Add, "macvlan", childConf("macvlan", keys+`,"mac":"01:00:00:00:00:00"`), n.pod("bad"))
}

// Without a master it is the link of the default route, of a multipath one too, with
// which the reference fails [S]; CHECK works with it, also when the route has moved.
func TestKernelMacvlanAutoMaster(t *testing.T) {
	n, s := macvlanNode(t)
	conf := childConf("macvlan", "")
	n.refuse(7, "no default route interface found", spec.Add, "macvlan", conf, n.pod("x"))
	n.refuse(50, "no default route interface found", spec.Status, "macvlan", conf, n.pod("x"))
	if err := s.host.AddAddr(s.up0.Index, rtnl.Addr{Prefix: prefix("192.0.2.1/24")}); err != nil {
		t.Fatal(err)
	}
	multipath(t, n.host, s.up0.Index, "192.0.2.2", "192.0.2.3")
	n.must(spec.Status, "macvlan", conf, pod{})
	p := n.pod("ctr")
	out := n.must(spec.Add, "macvlan", conf, p)
	if l := linkOf(t, kerneltest.Dial(t, p.ns), "eth0"); l.Parent != s.up0.Index {
		t.Errorf("it sits on #%d, want #%d", l.Parent, s.up0.Index)
	}
	n.must(spec.Check, "macvlan", prev(conf, out), p)
	if err := s.host.Do(rtnl.DropAddr(s.up0.Index, rtnl.Addr{Prefix: prefix("192.0.2.1/24")})); err != nil {
		t.Fatal(err)
	}
	n.must(spec.Check, "macvlan", prev(conf, out), p)
	n.must(spec.Del, "macvlan", conf, p)
}

// The MTU is within the master's, and CHECK compares what was configured, or what a
// later plugin has entered instead.
func TestKernelMacvlanMTU(t *testing.T) {
	n, _ := macvlanNode(t)
	p := n.pod("ctr")
	for _, mtu := range []string{"-1", "67", "1501"} {
		n.refuse(7, "invalid MTU "+mtu, spec.Add, "macvlan", childConf("macvlan", `,"master":"up0","mtu":`+mtu), p)
	}
	conf := childConf("macvlan", `,"master":"up0","mtu":1400`)
	out := n.must(spec.Add, "macvlan", conf, p)
	if !strings.Contains(out, `"mtu": 1400`) {
		t.Errorf("the MTU is not told: %s", out)
	}
	c := kerneltest.Dial(t, p.ns)
	if err := c.SetLink(linkOf(t, c, "eth0").Index, rtnl.LinkChange{MTU: new(1450)}); err != nil {
		t.Fatal(err)
	}
	n.refuse(102, "has MTU 1450, not 1400", spec.Check, "macvlan", prev(conf, out), p)
	n.must(spec.Check, "macvlan", prev(conf, strings.Replace(out, "1400", "1450", 1)), p)
}

// CHECK wants the master that the configuration names.
func TestKernelMacvlanOtherMaster(t *testing.T) {
	n, s := macvlanNode(t)
	if _, err := s.host.CreateLink(rtnl.LinkSpec{Name: "other0", Peer: &rtnl.LinkSpec{Name: "other1"}}); err != nil {
		t.Fatal(err)
	}
	conf, p := childConf("macvlan", `,"master":"up0"`), n.pod("ctr")
	out := n.must(spec.Add, "macvlan", conf, p)
	n.refuse(102, "is up0, not other0", spec.Check, "macvlan", strings.Replace(prev(conf, out), `"up0"`, `"other0"`, 1), p)
	n.refuse(102, "failed to lookup master", spec.Check, "macvlan", strings.Replace(prev(conf, out), `"up0"`, `"none0"`, 1), p)
	n.refuse(102, "wrong network namespace", spec.Check, "macvlan", strings.Replace(prev(conf, out), `"name"`, `"linkInContainer":true,"name"`, 1), p)
}

// The master is looked for in the container if the configuration says so.
func TestKernelMacvlanLinkInContainer(t *testing.T) {
	n, _ := macvlanNode(t)
	p := n.pod("ctr")
	c := kerneltest.Dial(t, p.ns)
	in0, err := c.CreateLink(rtnl.LinkSpec{Name: "in0", Up: true, Peer: &rtnl.LinkSpec{Name: "in1"}})
	if err != nil {
		t.Fatal(err)
	}
	conf := childConf("macvlan", `,"master":"in0","linkInContainer":true`)
	n.refuse(7, "looked for on the host", spec.Add, "macvlan", strings.Replace(conf, "true", "false", 1), p)
	before := n.state(p)
	out := n.must(spec.Add, "macvlan", conf, p)
	if l := linkOf(t, c, "eth0"); l.Parent != in0.Index || l.PeerNS {
		t.Errorf("got %+v, want the parent #%d here", l, in0.Index)
	}
	n.must(spec.Check, "macvlan", prev(conf, out), p)
	n.refuse(100, "already exists", spec.Add, "macvlan", conf, p)
	n.must(spec.Del, "macvlan", conf, p)
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// Two containers reach each other and somebody on the segment; without ipam the link
// is up and nothing else.
func TestKernelMacvlanTraffic(t *testing.T) {
	n, s := macvlanNode(t)
	conf := childConf("macvlan", `,"master":"up0"`)
	a, b := n.pod("a"), n.pod("b")
	n.echo(a)
	n.must(spec.Add, "macvlan", conf, a)
	n.must(spec.Add, "macvlan", conf, b)
	if err := s.wire.AddAddr(s.up1.Index, rtnl.Addr{Prefix: prefix("10.1.0.200/24")}); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]*rtnl.NS{"a neighbour": b.ns, "the segment": s.ns} {
		if who := ask(t, from, "10.1.0.2", patience); who != "a" {
			t.Errorf("from %s: %q answers", name, who)
		}
	}
	l2, p := `{"cniVersion":"1.1.0","name":"l2","type":"macvlan","master":"up0"}`, n.pod("l2")
	out := n.must(spec.Add, "macvlan", l2, p)
	if !linkOf(t, kerneltest.Dial(t, p.ns), "eth0").Up || strings.Contains(out, `"ips"`) {
		t.Errorf("layer 2 only: %s", out)
	}
	n.must(spec.Check, "macvlan", prev(l2, out), p)
	n.refuse(7, "no valid IP addresses", spec.Add, "macvlan", strings.Replace(l2, "1.1.0", "0.2.0", 1), n.pod("old"))
}

// A route without a gateway leads to the gateway of one before it, in every plugin.
func TestKernelOnLinkFirst(t *testing.T) {
	n, _ := macvlanNode(t)
	p := n.pod("a")
	conf := `{"cniVersion":"1.1.0","name":"demo","type":"macvlan","master":"up0","ipam":{"type":"static",
		"addresses":[{"address":"10.1.0.5/32","gateway":"169.254.1.1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"169.254.1.1/32"}]}}`
	res := n.must(spec.Add, "macvlan", conf, p)
	n.must(spec.Check, "macvlan", prev(conf, res), p)
	c := kerneltest.Dial(t, p.ns)
	if near, far := routeTo(t, c, "169.254.1.1/32"), routeTo(t, c, "0.0.0.0/0"); near.GW.IsValid() || far.GW.String() != "169.254.1.1" {
		t.Errorf("got %s and %s", near, far)
	}
}

// The master may be told by an alternative name, up to the longest that the kernel takes.
func TestKernelMacvlanAltName(t *testing.T) {
	for _, name := range []string{"uplink", "sixteen-bytes-xx", strings.Repeat("x", 127)} {
		n, _ := macvlanNode(t)
		n.altName("up0", name)
		p := n.pod("ctr")
		conf := childConf("macvlan", `,"master":"`+name+`"`)
		n.must(spec.Status, "macvlan", conf, pod{})
		n.must(spec.Check, "macvlan", prev(conf, n.must(spec.Add, "macvlan", conf, p)), p)
		n.must(spec.Del, "macvlan", conf, p)
	}
	n, _ := macvlanNode(t)
	n.refuse(7, "interface name is too long", spec.Add, "macvlan", childConf("macvlan", `,"master":"`+strings.Repeat("x", 128)+`"`), n.pod("x"))
}
