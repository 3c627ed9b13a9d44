package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
)

func TestKernelMasquerade(t *testing.T) {
	s := newSite(t)
	s.Listen(s.Outside, "lan")
	s.Listen(s.C2.NS, "two")
	s.WantNone(s.C1.NS, "tcp", lan4+":80") // the neighbour has no route back
	s.update(func(x *nft.Tx) error {
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		x.Masquerade(owner, netip.MustParsePrefix(one6+"/64"))
		return nil
	})
	s.Want(s.C1.NS, "tcp", lan4+":80", "lan "+hostLAN4)
	s.Want(s.C1.NS, "tcp", "["+lan6+"]:80", "lan "+hostLAN6)
	s.Want(s.C1.NS, "tcp", two4+":80", "two "+one4)
	s.WantNone(s.C2.NS, "tcp", lan4+":80") // not masqueraded
	s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
	s.WantNone(s.C1.NS, "tcp", lan4+":80")
}

func TestKernelPortMap(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.update(func(x *nft.Tx) error { // for answers to the neighbour
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		return nil
	})
	s.publish(nil)
	for _, network := range []string{"tcp", "udp"} {
		s.Want(s.Outside, network, hostLAN4+":8080", "one "+lan4)
		s.Want(s.Outside, network, "["+hostLAN6+"]:8080", "one "+lan6)
		s.Want(s.C2.NS, network, bridge4+":8080", "one "+bridge4)      // from its subnet
		s.Want(s.C2.NS, network, "["+bridge6+"]:8080", "one "+bridge6) // from its subnet
		s.Want(s.C1.NS, network, hostLAN4+":8080", "one "+bridge4)     // from the container itself
		s.Want(s.NS, network, "127.0.0.1:8080", "one "+bridge4)        // from the host
		s.Want(s.NS, network, "127.9.9.9:8080", "one "+bridge4)        // all of 127.0.0.0/8
		s.Want(s.NS, network, hostLAN4+":8080", "one "+hostLAN4)       // not masqueraded: the answer reaches the host anyway
		s.Want(s.NS, network, "["+hostLAN6+"]:8080", "one "+hostLAN6)  // IPv6 as well
	}
	s.Want(s.C2.NS, "tcp", one4+":80", "one "+two4) // without the mapping: not masqueraded
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindPortMap); return nil })
	s.WantNone(s.Outside, "tcp", hostLAN4+":8080")
}

func TestKernelPortMapOfOneAddress(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Listen(s.C2.NS, "two")
	s.update(func(x *nft.Tx) error {
		any := mapping(unix.IPPROTO_TCP, 8080, one4)
		one := mapping(unix.IPPROTO_TCP, 8080, two4)
		one.HostIP = netip.MustParseAddr(bridge4)
		if err := x.PortMap(owner, any); err != nil {
			return err
		}
		return x.PortMap(other, one)
	})
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+lan4)
	s.Want(s.NS, "tcp", bridge4+":8080", "two "+bridge4) // the mapping with a host IP has precedence
	s.Want(s.NS, "tcp", "127.0.0.1:8080", "one "+bridge4)
}

func TestKernelPortMapMasqAll(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.publish(func(m *nft.PortMap) { m.SNAT, m.MasqAll = false, true })
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+bridge4)
	s.Want(s.Outside, "tcp", "["+hostLAN6+"]:8080", "one "+bridge6)
	s.publish(func(m *nft.PortMap) { m.SNAT = false })
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+lan4)
	s.WantNone(s.NS, "tcp", "127.0.0.1:8080") // not possible without masquerading
}

// A service of another program, such as kube-proxy, whose target is a published container port,
// keeps the clients' addresses, even from the same port. Marks of others are kept.
func TestKernelPortMapKeepsServices(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Tool(`table ip services { chain pre { type nat hook prerouting priority dstnat;
		ip daddr 10.96.0.1 tcp dport 8080 dnat to `+one4+`:80; }
		chain marks { type filter hook prerouting priority mangle; meta mark set 0x21; }
		chain seen { type filter hook postrouting priority 300; meta mark != 0x21 oifname "br0" ip saddr != 10.9.0.0/24 drop; }; }`, "nft", "-f", "-")
	s.routeOutside("10.96.0.1/32", hostLAN4)
	s.publish(func(m *nft.PortMap) { m.MasqAll = true })
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+bridge4)
	s.Want(s.Outside, "tcp", "10.96.0.1:8080", "one "+lan4)
	s.publish(nil)
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "one "+lan4)
}

// CVE-2025-67499: only packets to the host itself are redirected.
func TestKernelPortMapOnlyOfHost(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Listen(s.Outside, "lan", "8080")
	s.publish(nil)
	s.update(func(x *nft.Tx) error { x.Masquerade(other, netip.MustParsePrefix(two4+"/24")); return nil })
	s.Want(s.C2.NS, "tcp", lan4+":8080", "lan "+hostLAN4)
	s.Want(s.NS, "tcp", lan4+":8080", "lan "+hostLAN4)
}

// CVE-2019-9946: rules of other programs for a host port have precedence.
func TestKernelForeignRulesPrecede(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Listen(s.C2.NS, "two")
	s.Tool(`table ip services { chain pre { type nat hook prerouting priority dstnat;
		ip daddr `+hostLAN4+` tcp dport 8080 dnat to `+two4+`:80; }; }`, "nft", "-f", "-")
	s.publish(nil)
	s.Want(s.Outside, "tcp", hostLAN4+":8080", "two "+lan4)
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
		if text := nfttest.Ruleset(t, s.NS); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// CVE-2020-8558: with route_localnet, neighbours cannot reach 127.0.0.1.
func TestKernelLocalnetGuarded(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Listen(s.NS, "secret", "7777")
	s.NoError(s.NS.SetSysctl("net/ipv4/conf/out0/route_localnet", "1"))
	s.AttackLocal(s.Outside, hostLAN4)
	s.Want(s.Outside, "tcp", "127.0.0.1:7777", "secret "+lan4) // reachable without the rules
	s.publish(nil)
	s.WantNone(s.Outside, "tcp", "127.0.0.1:7777")
	s.WantNone(s.Outside, "tcp", "127.0.0.1:8080")
	s.Want(s.NS, "tcp", "127.0.0.1:7777", "secret 127.0.0.1")
	s.Want(s.NS, "tcp", "127.0.0.1:8080", "one "+bridge4) // answers of masqueraded connections pass
}

func TestKernelConditions(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C1.NS, "one")
	s.Listen(s.C2.NS, "two")
	conds := func(tokens ...string) []nft.Match {
		m, err := nft.ParseConditions(tokens, false)
		s.NoError(err)
		return m
	}
	s.update(func(x *nft.Tx) error {
		a, b := mapping(unix.IPPROTO_TCP, 8080, one4), mapping(unix.IPPROTO_TCP, 8081, two4)
		a.Conditions = conds("!", "-s", "192.0.2.0/24,198.51.100.0/24", "-m", "mark", "--mark", "0")
		b.Conditions = conds("ip", "saddr", "{", "192.0.2.2,", "198.51.100.0/24", "}", "iifname", "out0")
		if err := x.PortMap(owner, a); err != nil {
			return err
		}
		return x.PortMap(other, b)
	})
	s.WantNone(s.Outside, "tcp", hostLAN4+":8080")
	s.Want(s.NS, "tcp", "127.0.0.1:8080", "one "+bridge4)
	s.Want(s.Outside, "tcp", hostLAN4+":8081", "two "+lan4) // each mapping has its conditions
	s.WantNone(s.NS, "tcp", "127.0.0.1:8081")
	s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
	s.Want(s.Outside, "tcp", hostLAN4+":8081", "two "+lan4)
	s.update(func(x *nft.Tx) error { x.Release(other); return nil })
	if text := nfttest.Ruleset(t, s.NS); strings.Contains(text, "cond-") || strings.Contains(text, "hairpin-") {
		t.Errorf("chains of released mappings stayed:\n%s", text)
	}
}

func TestKernelGuardMAC(t *testing.T) {
	s := newSite(t)
	s.Listen(s.C2.NS, "two")
	s.Want(s.C1.NS, "udp", two4+":80", "two "+one4)
	c, err := rtnl.Dial(s.C1.NS)
	s.NoError(err)
	defer c.Close()
	eth0, err := c.Link("eth0")
	s.NoError(err)
	s.update(func(x *nft.Tx) error { x.GuardMAC(owner, "vc1", eth0.MAC); return nil })
	s.Want(s.C1.NS, "udp", two4+":80", "two "+one4)
	s.NoError(c.SetLink(eth0.Index, rtnl.LinkChange{MAC: []byte{2, 0, 0, 0, 0, 9}}))
	s.WantNone(s.C1.NS, "udp", two4+":80")
	s.Want(s.NS, "udp", two4+":80", "two "+bridge4) // the other port is not guarded
	s.update(func(x *nft.Tx) error { x.Release(owner, nft.KindMACGuard); return nil })
	s.Want(s.C1.NS, "udp", two4+":80", "two "+one4)
}

// A UDP flow that began before the host port was published reaches the container after FlushUDP,
// and not before.
func TestKernelFlushUDP(t *testing.T) {
	for _, tt := range []struct{ name, host, at, port string }{
		{"IPv4", hostLAN4, one4, ":80"}, {"IPv6", hostLAN6, one6, ":80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.Listen(s.C1.NS, "one")
			s.publish(nil) // a nat chain enables connection tracking
			s.update(func(x *nft.Tx) error { x.Release(owner); return nil })
			host := netip.AddrPortFrom(netip.MustParseAddr(tt.host), 8080)
			conn := s.openFlow(s.Outside, host)
			conn.ask(t, false) // a flow to a closed port is tracked too
			s.publish(nil)
			conn.ask(t, false) // the stale flow still applies
			elsewhere := netip.AddrPortFrom(host.Addr().Next(), host.Port())
			s.NoError(s.table.FlushUDP([]netip.AddrPort{elsewhere, netip.AddrPortFrom(host.Addr(), 8081)}))
			conn.ask(t, false)
			s.NoError(s.table.FlushUDP([]netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, host.Port())}))
			conn.ask(t, true)
		})
	}
}
