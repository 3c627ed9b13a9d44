package ipam

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// Delete keeps the data directory and the leases of other networks. A store opened read-only cannot
// be deleted.
func TestDelete(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	addr, owner := netip.MustParseAddr("10.1.0.5"), spec.Attachment{Network: "a", ContainerID: "c", IfName: "eth0"}
	for _, network := range []string{"a", "b"} {
		s, err := Open(ctx, dir, network, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Reserve(addr, spec.Attachment{Network: network, ContainerID: "c", IfName: "eth0"}); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	view, err := OpenReadOnly(ctx, dir, "a", Options{})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := view.Leases()
	if l := leases[addr]; err != nil || len(leases) != 1 || !l.Owns(owner) {
		t.Errorf("got %v, %v", leases, err)
	}
	if view.Delete() == nil {
		t.Error("a store for reading is deleted")
	}
	view.Close()
	s, err := OpenExisting(ctx, dir, "a", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(); err != nil {
		t.Error(err)
	}
	s.Close()
	for path, there := range map[string]bool{"a": false, ".cnibox/a": false, "b/10.1.0.5": true, ".cnibox/b": true} {
		if _, err := os.Lstat(filepath.Join(dir, path)); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := OpenExisting(ctx, dir, "a", Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
}
