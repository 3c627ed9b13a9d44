package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/nft"
	"cnibox/rtnl"
)

func TestKernelMasquerade(t *testing.T) {
	s := newSite(t)
	s.serve(s.lan, "tcp", lan4+":80", "lan")
	s.serve(s.lan, "tcp", "["+lan6+"]:80", "lan")
	s.serve(s.two, "tcp", two4+":80", "two")
	s.refuse(s.one, "tcp", lan4+":80") // the neighbour has no way back
	s.update(func(x *nft.Tx) error {
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		x.Masquerade(owner, netip.MustParsePrefix(one6+"/64"))
		return nil
	})
	s.want(s.one, "tcp", lan4+":80", "lan "+hostLAN4)
	s.want(s.one, "tcp", "["+lan6+"]:80", "lan "+hostLAN6)
	s.want(s.one, "tcp", two4+":80", "two "+one4)
	s.refuse(s.two, "tcp", lan4+":80") // not owned, not masqueraded
	s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
	s.refuse(s.one, "tcp", lan4+":80")
}

func (s *site) serveOne() {
	for _, network := range []string{"tcp", "udp"} {
		s.serve(s.one, network, one4+":80", "one")
		s.serve(s.one, network, "["+one6+"]:80", "one")
	}
}

func TestKernelPortMap(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.update(func(x *nft.Tx) error { // so that answers to the neighbour leave
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		return nil
	})
	s.publish(nil)
	for _, network := range []string{"tcp", "udp"} {
		s.want(s.lan, network, hostLAN4+":8080", "one "+lan4)
		s.want(s.lan, network, "["+hostLAN6+"]:8080", "one "+lan6)
		s.want(s.two, network, bridge4+":8080", "one "+bridge4)         // own subnet
		s.want(s.two, network, "["+bridge6+"]:8080", "one "+bridge6)    // own subnet
		s.want(s.one, network, hostLAN4+":8080", "one "+bridge4)        // itself
		s.want(s.host, network, "127.0.0.1:8080", "one "+bridge4)       // localhost
		s.want(s.host, network, "127.9.9.9:8080", "one "+bridge4)       // all of it
		s.want(s.host, network, hostLAN4+":8080", "one "+hostLAN4)      // own address: comes back by itself
		s.want(s.host, network, "["+hostLAN6+"]:8080", "one "+hostLAN6) // the same
	}
	s.want(s.two, "tcp", one4+":80", "one "+two4) // directly: not masqueraded
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindPortMap); return nil })
	s.refuse(s.lan, "tcp", hostLAN4+":8080")
}

func TestKernelPortMapOfOneAddress(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.serve(s.two, "tcp", two4+":80", "two")
	s.update(func(x *nft.Tx) error {
		any := mapping(unix.IPPROTO_TCP, 8080, one4)
		one := mapping(unix.IPPROTO_TCP, 8080, two4)
		one.HostIP = netip.MustParseAddr(bridge4)
		if err := x.PortMap(owner, any); err != nil {
			return err
		}
		return x.PortMap(other, one)
	})
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+lan4)
	s.want(s.host, "tcp", bridge4+":8080", "two "+bridge4) // the more specific one
	s.want(s.host, "tcp", "127.0.0.1:8080", "one "+bridge4)
}

func TestKernelPortMapMasqAll(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.publish(func(m *nft.PortMap) { m.SNAT, m.MasqAll = false, true })
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+bridge4)
	s.want(s.lan, "tcp", "["+hostLAN6+"]:8080", "one "+bridge6)
	s.publish(func(m *nft.PortMap) { m.SNAT = false })
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+lan4)
	s.refuse(s.host, "tcp", "127.0.0.1:8080") // no way back without
}

// A service of others, as kube-proxy's, that leads to a published target, even from the
// same port, keeps its clients' addresses; so does the mark of others.
func TestKernelPortMapLeavesServices(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	tool(t, s.host, `table ip services { chain pre { type nat hook prerouting priority dstnat;
		ip daddr 10.96.0.1 tcp dport 8080 dnat to `+one4+`:80; }
		chain marks { type filter hook prerouting priority mangle; meta mark set 0x21; }
		chain seen { type filter hook postrouting priority 300; meta mark != 0x21 oifname "br0" ip saddr != 10.1.0.0/24 drop; }; }`, "nft", "-f", "-")
	s.ok(s.lanC.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("10.96.0.1/32"), GW: netip.MustParseAddr(hostLAN4), Link: s.uplink}))
	s.publish(func(m *nft.PortMap) { m.MasqAll = true })
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+bridge4)
	s.want(s.lan, "tcp", "10.96.0.1:8080", "one "+lan4)
	s.publish(nil)
	s.want(s.lan, "tcp", hostLAN4+":8080", "one "+lan4)
}

// CVE-2025-67499: only what is sent to the host itself may be redirected.
func TestKernelCVE2025_67499(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.serve(s.lan, "tcp", lan4+":8080", "lan")
	s.publish(nil)
	s.update(func(x *nft.Tx) error { x.Masquerade(other, netip.MustParsePrefix(two4+"/24")); return nil })
	s.want(s.two, "tcp", lan4+":8080", "lan "+hostLAN4)
	s.want(s.host, "tcp", lan4+":8080", "lan "+hostLAN4)
}

// CVE-2019-9946: rules that others made for a host port go before ours.
func TestKernelCVE2019_9946(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.serve(s.two, "tcp", two4+":80", "two")
	tool(t, s.host, `table ip services { chain pre { type nat hook prerouting priority dstnat;
		ip daddr `+hostLAN4+` tcp dport 8080 dnat to `+two4+`:80; }; }`, "nft", "-f", "-")
	s.publish(nil)
	s.want(s.lan, "tcp", hostLAN4+":8080", "two "+lan4)
}

func TestKernelPriorities(t *testing.T) {
	s := newSite(t)
	s.publish(nil)
	for _, want := range []string{
		"type nat hook prerouting priority dstnat + 10; policy accept;",
		"type nat hook output priority -90; policy accept;",
		"type nat hook postrouting priority srcnat + 10; policy accept;",
		"type filter hook prerouting priority raw; policy accept;",
	} {
		if text := render(t, s.host); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// CVE-2020-8558: route_localnet must not open 127.0.0.1 to neighbours.
func TestKernelCVE2020_8558(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.serve(s.host, "tcp", "127.0.0.1:7777", "secret")
	s.ok(s.host.SetSysctl("net/ipv4/conf/uplink/route_localnet", "1"))
	s.ok(s.lan.SetSysctl("net/ipv4/conf/eth0/route_localnet", "1"))
	s.ok(s.lanC.AddRoute(rtnl.Route{
		Dst: netip.MustParsePrefix("127.0.0.0/8"), GW: netip.MustParseAddr(hostLAN4), Link: s.uplink,
	}))
	s.want(s.lan, "tcp", "127.0.0.1:7777", "secret "+lan4) // the hole, before there are rules
	s.publish(nil)
	s.refuse(s.lan, "tcp", "127.0.0.1:7777")
	s.refuse(s.lan, "tcp", "127.0.0.1:8080")
	s.want(s.host, "tcp", "127.0.0.1:7777", "secret 127.0.0.1")
	s.want(s.host, "tcp", "127.0.0.1:8080", "one "+bridge4) // masqueraded answers pass
}

func TestKernelConditions(t *testing.T) {
	s := newSite(t)
	s.serveOne()
	s.serve(s.two, "tcp", two4+":80", "two")
	conds := func(tokens ...string) []nft.Match {
		m, err := nft.ParseConditions(tokens, false)
		s.ok(err)
		return m
	}
	s.update(func(x *nft.Tx) error {
		a, b := mapping(unix.IPPROTO_TCP, 8080, one4), mapping(unix.IPPROTO_TCP, 8081, two4)
		a.Conditions = conds("!", "-s", "192.0.2.0/24,198.51.100.0/24", "-m", "mark", "--mark", "0")
		b.Conditions = conds("ip", "saddr", "{", "192.0.2.2,", "198.51.100.0/24", "}", "iifname", "uplink")
		if err := x.PortMap(owner, a); err != nil {
			return err
		}
		return x.PortMap(other, b)
	})
	s.refuse(s.lan, "tcp", hostLAN4+":8080")
	s.want(s.host, "tcp", "127.0.0.1:8080", "one "+bridge4)
	s.want(s.lan, "tcp", hostLAN4+":8081", "two "+lan4) // each has its own
	s.refuse(s.host, "tcp", "127.0.0.1:8081")
	s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
	s.want(s.lan, "tcp", hostLAN4+":8081", "two "+lan4)
	s.update(func(x *nft.Tx) error { x.Release(other); return nil })
	if text := render(t, s.host); strings.Contains(text, "cond-") || strings.Contains(text, "hairpin-") {
		t.Errorf("chains of released mappings stayed:\n%s", text)
	}
}

func TestKernelGuardMAC(t *testing.T) {
	s := newSite(t)
	s.serve(s.two, "udp", two4+":80", "two")
	s.want(s.one, "udp", two4+":80", "two "+one4)
	c, err := rtnl.Dial(s.one)
	s.ok(err)
	defer c.Close()
	eth0, err := c.Link("eth0")
	s.ok(err)
	s.update(func(x *nft.Tx) error { x.GuardMAC(owner, "port1", eth0.MAC); return nil })
	s.want(s.one, "udp", two4+":80", "two "+one4)
	s.ok(c.SetLink(eth0.Index, rtnl.LinkChange{MAC: []byte{2, 0, 0, 0, 0, 9}}))
	s.refuse(s.one, "udp", two4+":80")
	s.want(s.host, "udp", two4+":80", "two "+bridge4) // other ports are not guarded
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindMACGuard); return nil })
	s.want(s.one, "udp", two4+":80", "two "+one4)
}

// A flow that began before its host port, or goes on after it moved, must not
// go astray.
func TestKernelFlushUDP(t *testing.T) {
	for _, tt := range []struct{ name, host, at, port string }{
		{"IPv4", hostLAN4, one4, ":80"}, {"IPv6", hostLAN6, one6, ":80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.serveOne()
			s.publish(nil) // connection tracking begins with a nat chain
			s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
			host := netip.AddrPortFrom(netip.MustParseAddr(tt.host), 8080)
			conn := s.openFlow(s.lan, host)
			conn.ask(t, false) // a closed port: tracked all the same
			s.publish(nil)
			conn.ask(t, false) // the stale flow wins
			elsewhere := netip.AddrPortFrom(host.Addr().Next(), host.Port())
			s.ok(s.table.FlushUDP([]netip.AddrPort{elsewhere, netip.AddrPortFrom(host.Addr(), 8081)}))
			conn.ask(t, false)
			s.ok(s.table.FlushUDP([]netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, host.Port())}))
			conn.ask(t, true)
		})
	}
}
