package applettest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Bridged is a host with bridge br0 and out0, containers c1 and c2 on the bridge's ports vc1 and
// vc2, and an outside machine behind out0. c1 has 10.9.0.11 and fd00:9::11, c2 10.9.0.12 and
// fd00:9::12, outside 192.0.2.2 and fd00:2::2, the host 10.9.0.1 and fd00:9::1 on br0, 192.0.2.1
// and fd00:2::1 on out0. No rules filter packets.
type Bridged struct {
	*Host
	C1, C2  Container // their paths are symbolic links, which tests may delete
	Outside *netns.NS
}

// NewBridged returns a Bridged, which is deleted when the test ends.
func NewBridged(t *testing.T) *Bridged {
	t.Helper()
	n := &Bridged{Host: NewHost(t), Outside: kerneltest.NS(t)}
	for key, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		// Without this, the host does not forward to neighbours until duplicate address detection
		// of its link-local address ends.
		"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
	} {
		n.NoError(n.NS.SetSysctl(key, value))
	}
	kerneltest.NeedKind(t, "CONFIG_BRIDGE", rtnl.Bridge{})
	br := kerneltest.AddLink(t, n.NS, rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true}).Index
	kerneltest.Address(t, n.NS, "br0", "10.9.0.1/24", "fd00:9::1/64")
	dir := t.TempDir()
	for _, id := range []string{"c1", "c2"} {
		c := n.container(id)
		*c = n.Container(id)
		path := filepath.Join(dir, id)
		n.NoError(os.Symlink(c.Path, path))
		c.Path = path
		n.addVeth(rtnl.LinkSpec{Name: "v" + id, Master: br}, c.NS)
		last := id[1:] // last digit of the addresses
		n.Configure(c.NS, "10.9.0.1"+last+"/24", "fd00:9::1"+last+"/64", "10.9.0.1", "fd00:9::1")
		// As hairpinMode of bridge: with br_netfilter, a container reaches its own published port
		// only so.
		kerneltest.Brief(t, n.NS, func(c *rtnl.Conn) error {
			return c.SetLink(kerneltest.Link(t, c, "v"+id).Index, rtnl.LinkChange{Hairpin: new(true)})
		})
	}
	kerneltest.LoUp(t, n.Outside)
	n.addVeth(rtnl.LinkSpec{Name: "out0"}, n.Outside)
	kerneltest.Address(t, n.NS, "out0", "192.0.2.1/24", "fd00:2::1/64")
	n.Configure(n.Outside, "192.0.2.2/24", "fd00:2::2/64", "192.0.2.1", "fd00:2::1")
	n.waitReady()
	return n
}

// addVeth connects the host with eth0 of a namespace by a veth pair.
func (n *Bridged) addVeth(l rtnl.LinkSpec, ns *netns.NS) {
	n.Helper()
	n.NoError(ns.SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	l.Up, l.Peer = true, &rtnl.LinkSpec{Name: "eth0", NS: ns}
	kerneltest.AddLink(n.T, n.NS, l)
}

// Configure sets an address of each family and default routes on eth0 of a namespace.
func (n *Bridged) Configure(ns *netns.NS, four, six, gw4, gw6 string) {
	n.Helper()
	kerneltest.DefaultRoutes(n.T, ns, kerneltest.Address(n.T, ns, "eth0", four, six), gw4, gw6)
}

// AttackLocal routes 127.0.0.0/8 of a namespace to a gateway, so that it can send such packets.
func (n *Bridged) AttackLocal(ns *netns.NS, gw string) {
	n.Helper()
	n.NoError(ns.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	kerneltest.Brief(n.T, ns, func(c *rtnl.Conn) error {
		return c.Do(rtnl.DropAddr(kerneltest.Link(n.T, c, "lo").Index, rtnl.Addr{Prefix: netip.MustParsePrefix("127.0.0.1/8")}),
			rtnl.NewRoute(rtnl.Route{Dst: netip.MustParsePrefix("127.0.0.0/8"), GW: netip.MustParseAddr(gw), Link: kerneltest.Link(n.T, c, "eth0").Index}))
	})
}

// waitReady waits for carriers and neighbours. Otherwise a test that expects no packet could succeed
// because the network does not work yet.
func (n *Bridged) waitReady() {
	n.Helper()
	kerneltest.WaitUp(n.T, n.NS, "br0", "vc1", "vc2", "out0")
	for _, ns := range []*netns.NS{n.C1.NS, n.C2.NS, n.Outside} {
		kerneltest.WaitUp(n.T, ns, "eth0")
	}
	for _, end := range []struct {
		ns    *netns.NS
		addr  string
		links int // links with the same solicited-node multicast group, that is, the same last 24 bits
	}{{n.NS, "fd00:9::1", 2}, {n.Outside, "fd00:2::2", 1}, {n.C1.NS, "fd00:9::11", 1}, {n.C2.NS, "fd00:9::12", 1}} {
		kerneltest.Solicited(n.T, end.ns, netip.MustParseAddr(end.addr), end.links)
	}
}

func (n *Bridged) container(id string) *Container {
	if id == "c1" {
		return &n.C1
	}
	return &n.C2
}

// BothProtocols maps port 8080 of TCP and UDP to port 80.
const BothProtocols = `{"hostPort":8080,"containerPort":80},{"hostPort":8080,"containerPort":80,"protocol":"UDP"}`

// Publish calls portmap for a container, with mappings.
func (n *Bridged) Publish(verb spec.Verb, id, mappings string) error {
	n.Helper()
	c, last := n.container(id), id[1:]
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],
		"ips":[{"address":"10.9.0.1%s/24","interface":0},{"address":"fd00:9::1%s/64","interface":0}]}`, c.Path, last, last)
	_, err := n.Do(verb, "portmap", c.Call(), `"runtimeConfig":{"portMappings":[`+mappings+`]}`, prev)
	return err
}
