package nft_test

import (
	"net/netip"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// secondBridge adds a bridge br1 with a container at 10.2.0.2 to the site.
func (s *site) secondBridge() *netns.NS {
	s.t.Helper()
	ns := kerneltest.NS(s.t)
	br, err := s.hostC.CreateLink(rtnl.LinkSpec{Name: "br1", Kind: rtnl.Bridge{}, Up: true})
	s.ok(err)
	s.addr(s.hostC, br.Index, "10.2.0.1/24")
	s.ok(s.hostC.AddLink(rtnl.LinkSpec{Name: "port3", Master: br.Index, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns}}))
	c := kerneltest.Dial(s.t, ns)
	eth0 := s.up(c, "10.2.0.2/24")
	s.ok(c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.2.0.1"), Link: eth0}))
	return ns
}

// lanRoute gives the neighbour a route to the containers, for answers without masquerade.
func (s *site) lanRoute() {
	s.t.Helper()
	for dst, gw := range map[string]string{"10.1.0.0/24": hostLAN4, "fd00::/64": hostLAN6} {
		s.ok(s.lanC.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: s.uplink}))
	}
}

// Where FORWARD drops, containers without the plugin reach nothing, and with it
// all that they may; so do new connections to their published ports.
func TestKernelForwardDrops(t *testing.T) {
	s := newSite(t)
	s.lanRoute()
	s.serveOne()
	s.serve(s.lan, "tcp", lan4+":80", "lan")
	s.serve(s.lan, "tcp", "["+lan6+"]:80", "lan")
	s.serve(s.two, "tcp", two4+":80", "two")
	s.publish(nil)
	dropping(t, s.host)
	s.refuse(s.one, "tcp", lan4+":80")
	s.refuse(s.one, "tcp", "["+lan6+"]:80")
	s.refuse(s.lan, "tcp", hostLAN4+":8080")
	s.refuse(s.lan, "udp", "["+hostLAN6+"]:8080")
	s.update(func(x *nft.Tx) error { return allow(x, owner) })
	s.want(s.one, "tcp", lan4+":80", "lan "+one4)
	s.want(s.one, "tcp", "["+lan6+"]:80", "lan "+one6)
	s.want(s.one, "tcp", two4+":80", "two "+one4) // bridged, where br_netfilter is on through FORWARD
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+lan4)
	s.want(s.lan, "udp", "["+hostLAN6+"]:8080", "one "+lan6)
	s.want(s.host, "tcp", one4+":80", "one "+bridge4)
	s.want(s.host, "tcp", "127.0.0.1:8080", "one "+bridge4)
	s.refuse(s.lan, "tcp", one4+":80") // not published: FORWARD decides
	tool(t, s.host, "", "iptables-nft", "-A", "CNI-ADMIN", "-s", one4, "-j", "DROP")
	s.refuse(s.one, "tcp", lan4+":80")
	tool(t, s.host, "", "iptables-nft", "-F", "CNI-ADMIN")
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindFirewall); return nil })
	s.refuse(s.one, "tcp", lan4+":80")
	s.refuse(s.lan, "tcp", hostLAN4+":8080")
}

// The administrator's chain in our own table overrides where there is no iptables.
func TestKernelAdminDrops(t *testing.T) {
	s := newSite(t)
	s.lanRoute()
	s.serve(s.lan, "tcp", lan4+":80", "lan")
	s.update(func(x *nft.Tx) error { return allow(x, owner) })
	s.want(s.one, "tcp", lan4+":80", "lan "+one4)
	tool(t, s.host, "add rule inet cnibox admin-CNI-ADMIN ip daddr "+lan4+" drop", "nft", "-f", "-")
	s.refuse(s.one, "tcp", lan4+":80")
}

// detour has the containers send packets for each other to the gateway.
func (s *site) detour() {
	s.t.Helper()
	for ns, to := range map[*netns.NS][2]string{s.one: {two4, two6}, s.two: {one4, one6}} {
		for _, key := range []string{"net/ipv4/conf/all", "net/ipv4/conf/eth0", "net/ipv6/conf/eth0"} {
			s.ok(ns.SetSysctl(key+"/accept_redirects", "0"))
		}
		c := kerneltest.Dial(s.t, ns)
		eth0, err := c.Link("eth0")
		s.ok(err)
		for i, gw := range []string{bridge4, bridge6} {
			a := netip.MustParseAddr(to[i])
			s.ok(c.AddRoute(rtnl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), GW: netip.MustParseAddr(gw), Link: eth0.Index}))
		}
	}
}

// Policies of bridges, with bridged packets passing the host's rules and without. The
// containers of a bridge send each other routed packets.
func TestKernelPolice(t *testing.T) {
	for name, netfilter := range map[string]string{"br_netfilter": "1", "no br_netfilter": "0"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.lanRoute()
			if err := s.host.SetSysctl("net/bridge/bridge-nf-call-iptables", netfilter); err != nil && netfilter == "1" {
				t.Skipf("SKIPPED: this kernel lacks CONFIG_BRIDGE_NETFILTER: %v", err)
			}
			s.detour()
			three := s.secondBridge()
			s.serveOne()
			s.serve(s.two, "tcp", two4+":80", "two")
			s.serve(three, "tcp", "10.2.0.2:80", "three")
			s.serve(s.lan, "tcp", lan4+":80", "lan")
			third := spec.Attachment{Network: "net2", ContainerID: "c3", IfName: "eth0"}
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(owner, "br0", false); return nil })
			s.want(s.one, "tcp", "10.2.0.2:80", "three "+one4) // br1 has no policy
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(third, "br1", false); return nil })
			s.refuse(s.one, "tcp", "10.2.0.2:80")
			s.refuse(three, "tcp", one4+":80")
			s.want(s.two, "tcp", one4+":80", "one "+two4)
			s.want(s.one, "tcp", lan4+":80", "lan "+one4)
			s.want(s.lan, "tcp", one4+":80", "one "+lan4)
			s.update(func(x *nft.Tx) error { x.SetBridgePolicy(other, "br0", true); return nil })
			s.refuse(s.two, "tcp", one4+":80")
			s.refuse(s.one, "tcp", two4+":80")
			s.refuse(s.two, "udp", "["+one6+"]:80")
			s.want(s.one, "tcp", lan4+":80", "lan "+one4)
			s.want(s.host, "tcp", one4+":80", "one "+bridge4)
			s.update(func(x *nft.Tx) error { x.Release(other); return nil })
			s.want(s.two, "tcp", one4+":80", "one "+two4)
			s.update(func(x *nft.Tx) error { x.Release(third); return nil })
			s.want(s.one, "tcp", "10.2.0.2:80", "three "+one4)
		})
	}
}
