package hostlocal

import (
	"net/netip"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

// The files in /proc have the addresses that netlink has.
func TestKernelAddressesOf(t *testing.T) {
	ns := kerneltest.NS(t)
	kerneltest.LoUp(t, ns)
	conn := kerneltest.Dial(t, ns)
	lo, err := conn.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("127.0.0.1")}
	for _, a := range want[:2] {
		if err := conn.Do(rtnl.NewAddr(lo.Index, rtnl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()-4), NoDAD: true})); err != nil {
			t.Fatal(err)
		}
	}
	used := map[netip.Addr]bool{}
	if err := ns.Do(func() error { return addressesOf("/proc/thread-self", used) }); err != nil {
		t.Fatal(err)
	}
	for _, a := range want {
		if !used[a] {
			t.Errorf("%s is missing in %v", a, used)
		}
	}
	if used[netip.MustParseAddr("10.1.0.0")] {
		t.Errorf("a network is taken for an address: %v", used)
	}
}
