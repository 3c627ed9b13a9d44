package nft_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
)

// updateAs changes the rule set as a program of this name does.
func updateAs(t *testing.T, program string, table *nft.Table, fn func(x *nft.Tx) error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with its name
		name, err := unix.BytePtrFromString(program)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
		}
		if err == nil {
			err = table.Update(context.Background(), fn)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// The watch reports each transaction in which another program deletes what plugins made. It reports
// neither what this program deletes, nor deletions of other objects, nor anything that is added.
func TestKernelWatchDeleted(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	updateAs(t, "ours", table, everything)
	w, err := nft.WatchRules(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	updateAs(t, "ours", table, release)
	updateAs(t, "first", table, everything)
	updateAs(t, "ours", table, release)
	updateAs(t, "ours", table, everything)
	nfttest.Load(t, ns, "add table ip other; add chain ip other c; add rule ip other c accept")
	nfttest.Load(t, ns, "delete table ip other")
	updateAs(t, "second", table, release)
	updateAs(t, "ours", table, everything)
	nfttest.Load(t, ns, "flush map inet cnibox masq4") // by nft
	updateAs(t, "ours", table, release)
	nfttest.Load(t, ns, "delete table inet cnibox")

	var deleters, reported []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for len(reported) < 3 {
		err := w.Deleted(ctx, func(program string) bool {
			deleters = append(deleters, program)
			return program == "ours"
		})
		if err != nil {
			t.Fatal(err)
		}
		reported = append(reported, deleters[len(deleters)-1])
	}
	if want := []string{"ours", "ours", "second", "nft", "ours", "nft"}; !slices.Equal(deleters, want) {
		t.Errorf("deleted by %q, want %q", deleters, want)
	}
	if want := []string{"second", "nft", "nft"}; !slices.Equal(reported, want) {
		t.Errorf("reported of %q, want %q", reported, want)
	}
	cancel()
	if err := w.Deleted(ctx, func(string) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the last one: %v", err)
	}
}
