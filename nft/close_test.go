package nft_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/nft"
)

// sockets returns the port IDs of the open netfilter sockets of a namespace.
func sockets(t *testing.T, ns *netns.NS) (ports []string) {
	t.Helper()
	err := ns.Do(func() error {
		all, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(all)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) && f[2] != "0" {
				ports = append(ports, f[2])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ports
}

// Closing a socket after a deletion waits for the kernel's garbage collection. The socket therefore
// stays open for the next update, unless the deletion was long ago.
func TestKernelNoWaitAfterDeletion(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	kept := 0
	for range 20 {
		mustUpdate(t, table, everything)
		mustUpdate(t, table, release)
		after := sockets(t, ns)
		kept += len(after)
		mustUpdate(t, table, func(x *nft.Tx) error {
			err := everything(x)
			if now := sockets(t, ns); len(after) > 1 || len(after) == 1 && !slices.Equal(now, after) {
				t.Errorf("open after a deletion are %v, in the next update %v: want one, and the same", after, now)
			}
			return err
		})
	}
	if kept == 0 {
		t.Error("no socket stayed open after a deletion")
	}
}

// A socket that stays open is used in its own namespace only.
func TestKernelNamespacesAfterDeletion(t *testing.T) {
	for range 3 {
		one, two := open(t, kerneltest.NS(t)), open(t, kerneltest.NS(t))
		mustUpdate(t, one, everything)
		mustUpdate(t, one, func(x *nft.Tx) error { x.Release(owner); return nil })
		mustUpdate(t, two, everything)
		if err := one.Check(t.Context(), everything); err == nil {
			t.Error("the change of one namespace was made in another")
		}
		if err := two.Check(t.Context(), everything); err != nil {
			t.Error(err)
		}
	}
}
