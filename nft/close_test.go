package nft_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"cnibox/internal/kerneltest"
	"cnibox/internal/mac"
	"cnibox/nft"
)

// median returns how long an update takes together with the one before it.
func median(t *testing.T, table *nft.Table, before func(x *nft.Tx) error) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range 7 {
		change(t, table, everything)
		start := time.Now()
		change(t, table, before)
		change(t, table, func(x *nft.Tx) error {
			x.GuardMAC(other, "veth2", mac.Addr{2, 0, 0, 0, 0, byte(i)})
			return nil
		})
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// slow is how long an update may take at most for its time to tell something. On
// an emulated processor the sockets are closed while an update still runs.
const slow = 8 * time.Millisecond

// An update does not wait for what the kernel clears away after the deletion just before
// it: the socket that would wait stays open, and is the next update's.
func TestKernelNoWaitAfterDeletion(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	before := descriptors(t)
	most := 0
	for range 20 {
		change(t, table, everything)
		change(t, table, release)
		most = max(most, descriptors(t))
	}
	if most != before+1 {
		t.Errorf("after deletions %d descriptors are open, before them were %d: want one more", most, before)
	}
	plain := median(t, table, func(*nft.Tx) error { return nil })
	after := median(t, table, release)
	if after > 3*plain+kerneltest.Patience(3*time.Millisecond) && plain < slow {
		t.Errorf("%s after a deletion, else %s", after, plain)
	}
}

// A socket that is kept open serves its own namespace alone.
func TestKernelNamespacesAfterDeletion(t *testing.T) {
	for range 3 {
		one, two := open(t, kerneltest.NS(t)), open(t, kerneltest.NS(t))
		change(t, one, everything)
		change(t, one, func(x *nft.Tx) error { x.Release(owner); return nil })
		change(t, two, everything)
		if err := one.Check(everything); err == nil {
			t.Error("the change of one namespace was made in another")
		}
		if err := two.Check(everything); err != nil {
			t.Error(err)
		}
	}
}
