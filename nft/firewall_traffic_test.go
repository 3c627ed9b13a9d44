package nft_test

import (
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// secondBridge adds bridge br1 with a container at 10.2.0.2 to the site.
func (s *site) secondBridge() *netns.NS {
	s.Helper()
	ns := kerneltest.NS(s.T)
	br := kerneltest.AddLink(s.T, s.NS, rtnl.LinkSpec{Name: "br1", Kind: rtnl.Bridge{}, Up: true}).Index
	kerneltest.Address(s.T, s.NS, "br1", "10.2.0.1/24")
	kerneltest.AddLink(s.T, s.NS, rtnl.LinkSpec{Name: "port3", Master: br, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns}})
	kerneltest.DefaultRoutes(s.T, ns, kerneltest.Address(s.T, ns, "eth0", "10.2.0.2/24"), "10.2.0.1")
	return ns
}

// lanRoute adds a route to the containers on the neighbour, for answers without masquerading.
func (s *site) lanRoute() {
	s.Helper()
	s.routeOutside("10.9.0.0/24", hostLAN4)
	s.routeOutside("fd00:9::/64", hostLAN6)
}

// With policy DROP in FORWARD, containers without the plugin reach nothing, and with it everything
// permitted. The same holds for connections to their published ports.
func TestKernelForwardPolicyDrop(t *testing.T) {
	s := newSite(t)
	s.lanRoute()
	s.Listen(s.C1.NS, "one")
	s.Listen(s.Outside, "lan")
	s.Listen(s.C2.NS, "two")
	s.publish(nil)
	setForwardDrop(t, s.NS)
	s.WantNone(s.C1.NS, "tcp", lan4+":80")
	s.WantNone(s.C1.NS, "tcp", "["+lan6+"]:80")
	s.WantNone(s.Outside, "tcp", hostLAN4+":8080")
	s.WantNone(s.Outside, "udp", "["+hostLAN6+"]:8080")
	s.update(func(x *nft.Tx) error { return allow(x, owner) })
	s.Want(s.C1.NS, "tcp", lan4+":80", "lan "+one4)
	s.Want(s.C1.NS, "tcp", "["+lan6+"]:80", "lan "+one6)
	s.Want(s.C1.NS, "tcp", two4+":80", "two "+one4) // bridged; passes FORWARD with br_netfilter
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+lan4)
	s.Want(s.Outside, "udp", "["+hostLAN6+"]:8080", "one "+lan6)
	s.Want(s.NS, "tcp", one4+":80", "one "+bridge4)
	s.Want(s.NS, "tcp", "127.0.0.1:8080", "one "+bridge4)
	s.WantNone(s.Outside, "tcp", one4+":80") // unpublished: FORWARD drops it
	s.Tool("", "iptables-nft", "-A", "CNI-ADMIN", "-s", one4, "-j", "DROP")
	s.WantNone(s.C1.NS, "tcp", lan4+":80")
	s.Tool("", "iptables-nft", "-F", "CNI-ADMIN")
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindFirewall); return nil })
	s.WantNone(s.C1.NS, "tcp", lan4+":80")
	s.WantNone(s.Outside, "tcp", hostLAN4+":8080")
}

// Without iptables the administrator's chain in the table of cnibox overrides accept rules.
func TestKernelAdminChainDrops(t *testing.T) {
	s := newSite(t)
	s.lanRoute()
	s.Listen(s.Outside, "lan")
	s.update(func(x *nft.Tx) error { return allow(x, owner) })
	s.Want(s.C1.NS, "tcp", lan4+":80", "lan "+one4)
	s.Tool("add rule inet cnibox admin-CNI-ADMIN ip daddr "+lan4+" drop", "nft", "-f", "-")
	s.WantNone(s.C1.NS, "tcp", lan4+":80")
}

// routeThroughGateway routes packets between the containers through the gateway.
func (s *site) routeThroughGateway() {
	s.Helper()
	for ns, to := range map[*netns.NS][2]string{s.C1.NS: {two4, two6}, s.C2.NS: {one4, one6}} {
		for _, key := range []string{"net/ipv4/conf/all", "net/ipv4/conf/eth0", "net/ipv6/conf/eth0"} {
			s.NoError(ns.SetSysctl(key+"/accept_redirects", "0"))
		}
		c := kerneltest.Dial(s.T, ns)
		eth0, err := c.Link("eth0")
		s.NoError(err)
		for i, gw := range []string{bridge4, bridge6} {
			a := netip.MustParseAddr(to[i])
			s.NoError(c.AddRoute(rtnl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), GW: netip.MustParseAddr(gw), Link: eth0.Index}))
		}
	}
}

// Policies of bridges for packets that are routed between containers of a bridge, with and without
// br_netfilter.
func TestKernelBridgePolicyTraffic(t *testing.T) {
	for name, netfilter := range map[string]string{"br_netfilter": "1", "no br_netfilter": "0"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.lanRoute()
			if err := s.NS.SetSysctl("net/bridge/bridge-nf-call-iptables", netfilter); err != nil && netfilter == "1" {
				t.Skipf("SKIPPED: this kernel lacks CONFIG_BRIDGE_NETFILTER: %v", err)
			}
			s.routeThroughGateway()
			three := s.secondBridge()
			s.Listen(s.C1.NS, "one")
			s.Listen(s.C2.NS, "two")
			s.Listen(three, "three")
			s.Listen(s.Outside, "lan")
			third := spec.Attachment{Network: "net2", ContainerID: "c3", IfName: "eth0"}
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(owner, "br0", false); return nil })
			s.Want(s.C1.NS, "tcp", "10.2.0.2:80", "three "+one4) // br1 has no policy
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(third, "br1", false); return nil })
			s.WantNone(s.C1.NS, "tcp", "10.2.0.2:80")
			s.WantNone(three, "tcp", one4+":80")
			s.Want(s.C2.NS, "tcp", one4+":80", "one "+two4)
			s.Want(s.C1.NS, "tcp", lan4+":80", "lan "+one4)
			s.Want(s.Outside, "tcp", one4+":80", "one "+lan4)
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(other, "br0", true); return nil })
			s.WantNone(s.C2.NS, "tcp", one4+":80")
			s.WantNone(s.C1.NS, "tcp", two4+":80")
			s.WantNone(s.C2.NS, "udp", "["+one6+"]:80")
			s.Want(s.C1.NS, "tcp", lan4+":80", "lan "+one4)
			s.Want(s.NS, "tcp", one4+":80", "one "+bridge4)
			s.update(func(x *nft.Tx) error { x.Release(other); return nil })
			s.Want(s.C2.NS, "tcp", one4+":80", "one "+two4)
			s.update(func(x *nft.Tx) error { x.Release(third); return nil })
			s.Want(s.C1.NS, "tcp", "10.2.0.2:80", "three "+one4)
		})
	}
}
