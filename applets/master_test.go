package applets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/nlconn"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A segment is a wire: one end is up0 on a host, the other one somebody else's.
type segment struct {
	ns         *rtnl.NS // of the other end, up1
	host, wire *rtnl.Conn
	up0, up1   *rtnl.Link
}

// segment gives the host a link up0 that can be a master, and a resolv.conf.
func (n *node) segment() segment {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "resolv.conf"), []byte("nameserver 10.1.0.53\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	s := segment{ns: kerneltest.NS(n.t)}
	s.host, s.wire = kerneltest.Dial(n.t, n.host), kerneltest.Dial(n.t, s.ns)
	if _, err := s.host.CreateLink(rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "up1", NS: s.ns}}); err != nil {
		n.t.Fatal(err)
	}
	s.up1 = linkOf(n.t, s.wire, "up1")
	if err := s.wire.SetLink(s.up1.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		n.t.Fatal(err)
	}
	s.up0 = linkOf(n.t, s.host, "up0")
	return s
}

// addrsOf returns the first address of a link that begins so.
func addrsOf(t *testing.T, c *rtnl.Conn, index uint32, begin string) rtnl.Addr {
	t.Helper()
	all, err := c.Addrs(index)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if strings.HasPrefix(a.Prefix.String(), begin) {
			return a
		}
	}
	t.Fatalf("no address %s", begin)
	return rtnl.Addr{}
}

// routeTo returns a route to a network.
func routeTo(t *testing.T, c *rtnl.Conn, dst string) rtnl.Route {
	t.Helper()
	all, err := c.Routes(rtnl.RouteFilter{Dst: prefix(dst)})
	if err != nil || len(all) == 0 {
		t.Fatalf("no route to %s: %v", dst, err)
	}
	return all[0]
}

// A child is a plugin whose link is on its own in the container.
type child struct {
	need func(*testing.T)
	keys string // its own, with up0 as the master
	kind rtnl.Kind
}

// children are these plugins; each one's test file adds its own.
var children = map[string]child{}

// addChild enters a plugin into the tests for all of them, and into those of
// rollback and names.
func addChild(name, keys, feature string, kind rtnl.Kind) {
	need := func(t *testing.T) { kerneltest.NeedKind(t, feature, kind) }
	children[name] = child{need, keys, kind}
	rollbackHosts[name] = func(n *node) { need(n.t); n.segment() }
	rollbackConfs[name+"-alone"] = childConf(name, keys)
}

// childConf is a configuration with addresses of IPv4, which need no waiting.
func childConf(name, keys string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":%q%s,"ipam":{"type":"host-local","dataDir":"$DIR","resolvConf":"$DIR/resolv.conf",
		"subnet":"10.1.0.0/24","routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.1","mtu":1300}]}}`, name, keys)
}

// eachChild runs a test for each plugin that the kernel can do, on a new host.
func eachChild(t *testing.T, test func(t *testing.T, n *node, s segment, applet, conf string)) {
	for name, c := range children {
		t.Run(name, func(t *testing.T) {
			c.need(t)
			n := newNode(t)
			test(t, n, n.segment(), name, childConf(name, c.keys))
		})
	}
}

// refuse wants an error of a code and a text, and that nothing is left behind.
func (n *node) refuse(code int, want string, verb spec.Verb, applet, conf string, p pod, more ...string) {
	n.t.Helper()
	before := n.state(p)
	got, out := n.call(n.t.Context(), verb, applet, conf, p, more...)
	if got != code || !strings.Contains(out, want) {
		n.t.Errorf("%s answers %d %s, want %d and %q", verb, got, out, code, want)
	}
	if after := n.state(p); after != before {
		n.t.Errorf("%s left behind:\n%s", verb, kerneltest.Diff(before, after))
	}
}

// The link has its name, master, address, route and DNS when ADD ends; the reference
// drops the DNS of the address plugin [S]. GET tells the same, CHECK passes.
func TestKernelChildAdd(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		p := n.pod("ctr")
		out := n.must(spec.Add, applet, conf, p)
		c := kerneltest.Dial(t, p.ns)
		l, err := c.Link("eth0")
		if err != nil || l.Kind != applet || !l.Up {
			t.Fatalf("got %+v, %v", l, err)
		}
		if applet != "dummy" && (l.Parent != s.up0.Index || !l.PeerNS) {
			t.Errorf("it sits on #%d, want #%d", l.Parent, s.up0.Index)
		}
		for _, want := range []string{l.MAC.String(), `"mtu": 1500`, `"10.1.0.2/24"`, `"10.1.0.53"`, p.path, `"interface": 0`} {
			if !strings.Contains(out, want) {
				t.Errorf("the result lacks %s: %s", want, out)
			}
		}
		if got := n.must(spec.Get, applet, conf, p); got != out {
			t.Errorf("GET answers %s, want %s", got, out)
		}
		own := strings.Replace(conf, `"ipam"`, `"dns":{"nameservers":["192.0.2.53"]},"ipam"`, 1)
		if got := n.must(spec.Get, applet, own, p); strings.Contains(got, "10.1.0.53") || !strings.Contains(got, "192.0.2.53") {
			t.Errorf("a configured dns does not replace that of ipam: %s", got)
		}
		none := strings.Replace(conf, `"ipam"`, `"dns":{"nameservers":[]},"ipam"`, 1)
		if got := n.must(spec.Get, applet, none, p); strings.Contains(got, "10.1.0.53") {
			t.Errorf("a configured dns with an empty list does not replace that of ipam: %s", got)
		}
		n.must(spec.Check, applet, prev(conf, out), p)
		n.refuse(100, `container interface name \"eth0\" already exists`, spec.Add, applet, conf, p)
	})
}

// CHECK tells each thing that is taken away.
func TestKernelChildCheck(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		p := n.pod("ctr")
		c := kerneltest.Dial(t, p.ns)
		eth0 := func() uint32 { return linkOf(t, c, "eth0").Index }
		for want, harm := range map[string]func() error{
			"container interface":             func() error { return c.DelLink("eth0") },
			"is down":                         func() error { return c.SetLink(eth0(), rtnl.LinkChange{Up: new(false)}) },
			"does not have address 10.1.":     func() error { return c.Do(rtnl.DropAddr(eth0(), addrsOf(t, c, eth0(), "10.1."))) },
			"route 10.9.0.0/16":               func() error { return c.Do(rtnl.DropRoute(routeTo(t, c, "10.9.0.0/16"))) },
			"Failed to find address added by": func() error { return os.RemoveAll(filepath.Join(n.dir, "demo")) },
		} {
			result := n.must(spec.Add, applet, conf, p)
			n.must(spec.Check, applet, prev(conf, result), p)
			if err := harm(); err != nil {
				t.Fatalf("%s: %v", want, err)
			}
			if want == "is down" { // its route is gone with it
				conf := strings.Replace(prev(conf, result), `"routes"`, `"other"`, -1)
				n.refuse(102, want, spec.Check, applet, conf, p)
			} else if code, out := n.call(t.Context(), spec.Check, applet, prev(conf, result), p); code == 0 || !strings.Contains(out, want) {
				t.Errorf("CHECK answers %d %s, want %q", code, out, want)
			}
			n.must(spec.Del, applet, conf, p)
		}
	})
}

// DEL succeeds and cleans all with anything missing: namespace empty, gone, or a stale
// regular file; the master, which the reference's vlan and ipvlan look for [S];
// prevResult; and a second time.
func TestKernelChildDel(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		n.must(spec.Del, applet, conf, n.pod("never"))
		stale := filepath.Join(t.TempDir(), "stale")
		if err := os.WriteFile(stale, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for name, path := range map[string]string{"empty": "", "gone": "/nonexistent/netns", "stale file": stale, "live": "live"} {
			p := n.pod("ctr")
			before := n.state(p)
			n.must(spec.Add, applet, conf, p)
			if path != "live" { // the namespace, and the link with it, goes
				if err := kerneltest.Dial(t, p.ns).DelLink("eth0"); err != nil {
					t.Fatal(err)
				}
			}
			gone := p
			if path != "live" {
				gone.path = path
			}
			n.must(spec.Del, applet, conf, gone)
			n.must(spec.Del, applet, conf, gone)
			if after := n.state(p); after != before {
				t.Errorf("%s: left behind:\n%s", name, kerneltest.Diff(before, after))
			}
		}
		p := n.pod("ctr")
		n.must(spec.Add, applet, conf, p)
		if err := s.host.DelLink("up0"); err != nil {
			t.Fatal(err)
		}
		broken := strings.Replace(conf, `"name"`, `"mtu":-1,"name"`, 1)
		n.must(spec.Del, applet, broken, p)
		n.must(spec.Del, applet, conf, p)
		if left := n.leases(); len(left) != 0 {
			t.Errorf("leases are left: %q", left)
		}
		if _, err := kerneltest.Dial(t, p.ns).Link("eth0"); err == nil {
			t.Error("the link is left")
		}
	})
}

// An address plugin that fails leaves no link: the reference's macvlan, ipvlan and vlan
// leave theirs [S].
func TestKernelChildExhausted(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		conf = strings.Replace(conf, `"subnet":"10.1.0.0/24"`, `"subnet":"10.1.0.0/30","rangeStart":"10.1.0.2"`, 1)
		other := strings.Replace(conf, `"type":"`+applet+`"`, `"type":"host-local"`, 1)
		n.must(spec.Add, "host-local", other, pod{id: "first", path: "/nonexistent"})
		n.refuse(101, "no IP addresses available", spec.Add, applet, conf, n.pod("ctr"))
	})
}

// STATUS tells of a master that is missing, and of an address plugin's trouble.
func TestKernelChildStatus(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		n.must(spec.Status, applet, conf, pod{})
		if applet == "dummy" {
			return
		}
		if err := s.host.DelLink("up0"); err != nil {
			t.Fatal(err)
		}
		n.refuse(50, `failed to lookup master \"up0\"`, spec.Status, applet, conf, n.pod("any"))
		n.refuse(7, `failed to lookup master \"up0\"`, spec.Add, applet, conf, n.pod("any"))
		n.must(spec.Status, applet, strings.Replace(conf, `"name"`, `"linkInContainer":true,"name"`, 1), pod{})
	})
}

// On a kernel without the kind of links STATUS says so, and ADD with the same code.
func TestKernelChildLacking(t *testing.T) {
	for name, c := range children {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.segment()
			if err := kerneltest.Dial(t, n.host).AddLink(rtnl.LinkSpec{Name: "probe0", Kind: c.kind}); !errors.Is(err, unix.EOPNOTSUPP) {
				t.Skipf("SKIPPED: this kernel has links of kind %s: %v", name, err)
			}
			conf := childConf(name, c.keys)
			n.refuse(50, "this kernel has no such links", spec.Status, name, conf, n.pod("any"))
			n.refuse(spec.CodeHost, "this kernel has no such links", spec.Add, name, conf, n.pod("any"))
		})
	}
}

// An IPv6 address that somebody on the segment has is told, and nothing is left; a free
// one can be used when ADD ends.
func TestKernelChildDuplicate(t *testing.T) {
	eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
		if applet == "dummy" || applet == "vlan" { // nobody else is there, or has to be in the VLAN
			return
		}
		conf = strings.NewReplacer("10.1.0.0/24", "fd00:1::/64", `"10.9.0.0/16"`, `"fd00:9::/64"`, "10.1.0.1", "fd00:1::1").Replace(conf)
		taken := rtnl.Addr{Prefix: prefix("fd00:1::2/64"), NoDAD: true}
		if err := s.wire.AddAddr(s.up1.Index, taken); err != nil {
			t.Fatal(err)
		}
		kerneltest.Solicited(t, s.ns, netip.MustParseAddr("fd00:1::2"), 1)
		n.refuse(100, "duplicate address", spec.Add, applet, conf, n.careful("ctr"))
		p := n.pod("ctr")
		out := n.must(spec.Add, applet, conf, p)
		addr := addrsOf(t, kerneltest.Dial(t, p.ns), linkOf(t, kerneltest.Dial(t, p.ns), "eth0").Index, "fd00:1::3")
		if addr.Tentative || addr.DADFailed || addr.NoDAD {
			t.Errorf("got %+v after %s", addr, out)
		}
		n.must(spec.Del, applet, conf, p)
		// without a carrier nothing can be detected: ADD succeeds with an address that never gets further
		if err := s.wire.SetLink(s.up1.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
			t.Fatal(err)
		}
		var told strings.Builder
		n.warn = &told
		n.must(spec.Add, applet, conf, n.pod("late"))
		if !strings.Contains(told.String(), "has no carrier: its addresses are tentative") {
			t.Errorf("ADD without carrier says %q", told.String())
		}
	})
}

// altName gives a link of the host an alternative name: ip link property add dev … altname.
func (n *node) altName(link, name string) {
	n.t.Helper()
	index := linkOf(n.t, kerneltest.Dial(n.t, n.host), link).Index
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_PROP_LIST, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.IFLA_ALT_IFNAME, name)
		return nil
	})
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], index)
	kerneltest.Need(n.t, "alternative names (Linux 5.5)", func() error {
		return request(n.t, n.host, unix.RTM_NEWLINKPROP, netlink.Create|netlink.Append, header, ae)
	})
}

// request sends a message that the product has no use for.
func request(t *testing.T, ns *rtnl.NS, typ netlink.HeaderType, flags netlink.HeaderFlags, header []byte, ae *netlink.AttributeEncoder) error {
	t.Helper()
	attrs, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	c, err := nlconn.Open(unix.NETLINK_ROUTE, ns.Do)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Acknowledge | flags}, Data: append(header, attrs...),
	})
	return err
}

// multipath makes a default route with several gateways: struct rtmsg, and in
// RTA_MULTIPATH a struct rtnexthop with its RTA_GATEWAY for each.
func multipath(t *testing.T, ns *rtnl.NS, link uint32, gws ...string) {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.Do(unix.RTA_MULTIPATH, func() (b []byte, err error) {
		for _, gw := range gws {
			b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtNexthop+8)
			b = binary.NativeEndian.AppendUint32(append(b, 0, 0), link)
			hop, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.RTA_GATEWAY, Data: netip.MustParseAddr(gw).AsSlice()}})
			if err != nil {
				return nil, err
			}
			b = append(b, hop...)
		}
		return b, nil
	})
	header := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	if err := request(t, ns, unix.RTM_NEWROUTE, netlink.Create, header, ae); err != nil {
		t.Fatal(err)
	}
}
