package rtnl_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/mac"
	"cnibox/internal/netlink"
	"cnibox/rtnl"
)

// A host that still has the former owner's MAC for an address takes the new
// one from the announcement, at once and for each family.
func TestKernelAnnounce(t *testing.T) {
	host, cont, h, c, a, b := pair(t, true)
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
	carries(t, h, a)
	carries(t, c, b)
	neigh := dialNeigh(t, host)
	old := mac.Addr{2, 0xde, 0xad, 0, 0, 1}
	for _, addr := range addrs {
		know(t, neigh, a.Index, addr, old)
	}
	ipv4, ipv6 := rtnl.Announcing(b.Name)
	if err := cont.SetSysctls(ipv4, ipv6); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(rtnl.Announce(b)); err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if got := await(t, neigh, a.Index, addr, b.MAC); !bytes.Equal(got, b.MAC) {
			t.Errorf("%s is known at %s, want %s", addr, got, b.MAC)
		}
	}
}

func dialNeigh(t *testing.T, ns *rtnl.NS) *netlink.Socket {
	t.Helper()
	s, err := netlink.Open(unix.NETLINK_ROUTE, ns.Do)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// neighbour returns a struct ndmsg, include/uapi/linux/neighbour.h.
func neighbour(addr netip.Addr, link uint32, state uint16) netlink.Buf {
	b := make(netlink.Buf, unix.SizeofNdMsg)
	b[0] = unix.AF_INET
	if addr.Is6() {
		b[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(b[4:], link)
	binary.NativeEndian.PutUint16(b[8:], state)
	return b
}

// know enters a neighbour as if it had just been heard of.
func know(t *testing.T, s *netlink.Socket, link uint32, addr netip.Addr, mac mac.Addr) {
	t.Helper()
	b := neighbour(addr, link, unix.NUD_REACHABLE)
	b.Bytes(unix.NDA_DST, addr.AsSlice())
	b.Bytes(unix.NDA_LLADDR, mac)
	r := netlink.Request{Type: unix.RTM_NEWNEIGH, Flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE | unix.NLM_F_ACK, Data: b}
	if err := s.Get(r, func(netlink.Message) error { return nil }); err != nil {
		t.Fatalf("neighbour %s: %v", addr, err)
	}
}

// await returns what the host knows once that is want, or after some time.
func await(t *testing.T, s *netlink.Socket, link uint32, addr netip.Addr, want mac.Addr) (mac mac.Addr) {
	t.Helper()
	r := netlink.Request{Type: unix.RTM_GETNEIGH, Data: neighbour(addr, 0, 0)}
	for end := time.Now().Add(kerneltest.Patience(10 * time.Second)); time.Now().Before(end); time.Sleep(time.Millisecond) {
		err := s.Dump(r, func(m netlink.Message) error {
			at := m.Data[unix.SizeofNdMsg:]
			if binary.NativeEndian.Uint32(m.Data[4:]) == link && bytes.Equal(netlink.Attr(at, unix.NDA_DST), addr.AsSlice()) {
				mac = netlink.Attr(at, unix.NDA_LLADDR)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(mac, want) {
			break
		}
	}
	return mac
}
