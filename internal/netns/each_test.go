package netns_test

import (
	"net/netip"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/rtnl"
)

// The files in /proc have the same addresses as netlink.
func TestKernelProcessAddrs(t *testing.T) {
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
	var got []netip.Addr
	if err := ns.Do(func() (err error) { got, err = netns.ProcessAddrs("/proc/thread-self"); return err }); err != nil {
		t.Fatal(err)
	}
	used := map[netip.Addr]bool{}
	for _, a := range got {
		used[a] = true
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

// A namespace that only a descriptor refers to is found once, and none that has ended.
func TestKernelEachNS(t *testing.T) {
	ns, gone := kerneltest.NS(t), kerneltest.NS(t)
	want, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	ended, err := gone.ID()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	seen := map[netns.ID]int{}
	err = netns.Each(func(path string, ns *netns.NS) error {
		if ns == nil {
			return nil
		}
		id, err := ns.ID()
		seen[id]++
		return err
	})
	if err != nil || seen[want] != 1 || seen[ended] != 0 {
		t.Errorf("seen %d times, one that has ended %d: %v", seen[want], seen[ended], err)
	}
}
