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

// An update does not wait for what the kernel clears away after the deletion
// just before it: the sockets that would wait stay open, and are closed later.
func TestKernelNoWaitAfterDeletion(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	before := descriptors(t)
	open := 0
	for i := 0; i < 10 && open <= before; i++ { // a machine may be busy elsewhere just then
		change(t, table, everything)
		settled(t, before)
		change(t, table, release)
		open = descriptors(t)
	}
	if open <= before {
		t.Errorf("after a deletion %d descriptors are open, before it were %d", open, before)
	}
	settled(t, before)
	plain := median(t, table, func(*nft.Tx) error { return nil })
	after := median(t, table, release)
	if after > 3*plain+kerneltest.Patience(3*time.Millisecond) && plain < slow {
		t.Errorf("%s after a deletion, else %s", after, plain)
	}
	settled(t, before)
}

// settled waits until no more sockets are open than before.
func settled(t *testing.T, before int) {
	t.Helper()
	end := time.Now().Add(kerneltest.Patience(5 * time.Second))
	for descriptors(t) > before && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
	}
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors are open, before it were %d", now, before)
	}
}
