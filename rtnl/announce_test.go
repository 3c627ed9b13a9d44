package rtnl_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// An announcement replaces the MAC address of the former owner in the neighbour table, for each
// family.
func TestKernelAnnounce(t *testing.T) {
	host, cont, h, c, a, b := vethPair(t, true)
	addrs := []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("2001:db8::2")}
	err := h.Do(
		rtnl.NewAddr(a.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.1/24")}),
		rtnl.NewAddr(a.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::1/64"), NoDAD: true}))
	if err != nil {
		t.Fatal(err)
	}
	err = c.Do(
		rtnl.NewAddr(b.Index, rtnl.Addr{Prefix: netip.PrefixFrom(addrs[0], 24)}),
		rtnl.NewAddr(b.Index, rtnl.Addr{Prefix: netip.PrefixFrom(addrs[1], 64), NoDAD: true}))
	if err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, h, a)
	waitCarrier(t, c, b)
	neigh := dialNeigh(t, host)
	old := net.HardwareAddr{2, 0xde, 0xad, 0, 0, 1}
	for _, addr := range addrs {
		addNeighbour(t, neigh, a.Index, addr, old)
	}
	if err := cont.SetSysctls(rtnl.NDNotify(b.Name)); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(rtnl.ChangeLink(b.Index, rtnl.LinkChange{ARPNotify: new(true)}), rtnl.Announce(b)); err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		kerneltest.Eventually(t, "the new MAC", func() error {
			if got := neighbourMAC(t, neigh, a.Index, addr); !bytes.Equal(got, b.MAC) {
				return fmt.Errorf("%s is known at %s, want %s", addr, got, b.MAC)
			}
			return nil
		})
	}
}

// dialNeigh opens a connection of the library in a namespace, since rtnl cannot add neighbours.
func dialNeigh(t *testing.T, ns *netns.NS) *rtnetlink.Conn {
	t.Helper()
	c, err := rtnetlink.Dial(&netlink.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// addNeighbour adds a reachable neighbour.
func addNeighbour(t *testing.T, c *rtnetlink.Conn, link uint32, addr netip.Addr, mac net.HardwareAddr) {
	t.Helper()
	m := &rtnetlink.NeighMessage{
		Family: unix.AF_INET, Index: link, State: unix.NUD_REACHABLE,
		Attributes: &rtnetlink.NeighAttributes{Address: addr.AsSlice(), LLAddress: net.HardwareAddr(mac)},
	}
	if addr.Is6() {
		m.Family = unix.AF_INET6
	}
	if _, err := c.Execute(m, unix.RTM_NEWNEIGH, netlink.Request|netlink.Create|netlink.Replace|netlink.Acknowledge); err != nil {
		t.Fatalf("neighbour %s: %v", addr, err)
	}
}

// neighbourMAC returns the MAC address of addr in the neighbour table, or nil.
func neighbourMAC(t *testing.T, c *rtnetlink.Conn, link uint32, addr netip.Addr) net.HardwareAddr {
	t.Helper()
	list, err := c.Neigh.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.Index == link && n.Attributes != nil && n.Attributes.Address.Equal(addr.AsSlice()) {
			return n.Attributes.LLAddress
		}
	}
	return nil
}
