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

// An update does not wait for what the kernel clears away after the deletion
// just before it, and the sockets that are left open for that are closed.
func TestKernelNoWaitAfterDeletion(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	before := descriptors(t)
	plain := median(t, table, func(*nft.Tx) error { return nil })
	after := median(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	if after > 3*plain+3*time.Millisecond {
		t.Errorf("%s after a deletion, else %s", after, plain)
	}
	end := time.Now().Add(5 * time.Second)
	for descriptors(t) > before && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
	}
	if now := descriptors(t); now > before {
		t.Errorf("%d descriptors are open, before it were %d", now, before)
	}
}
