package nft_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
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

// Closing a socket after a deletion waits for the kernel's garbage collection. The socket of a session therefore stays open
// until its end, and so does none without a session.
func TestKernelNoWaitAfterDeletion(t *testing.T) {
	ns := kerneltest.NS(t)
	verb := session.New().For(0, owner.Key(), nil)
	table := open(t, ns, nft.WithSession(verb))
	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	var first []string
	for range 3 {
		mustUpdate(t, table, everything)
		mustUpdate(t, table, release)
		now := sockets(t, ns)
		if first == nil {
			first = now
		}
		if len(now) != 1 || !slices.Equal(now, first) {
			t.Errorf("open in a session are %v, at first %v: want one, and the same", now, first)
		}
	}
	mustUpdate(t, open(t, ns), everything)
	if now := sockets(t, ns); !slices.Equal(now, first) {
		t.Errorf("open after an update of another are %v", now)
	}
	verb.Close()
	if now := sockets(t, ns); len(now) > 0 {
		t.Errorf("open after the session are %v", now)
	}
}
