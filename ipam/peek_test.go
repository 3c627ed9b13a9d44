package ipam_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// ReadLeases needs no lock, and returns leases without an owner too.
func TestReadLeasesWithoutLock(t *testing.T) {
	dir := t.TempDir()
	if all, err := ipam.ReadLeases(dir, "demo"); err != nil || len(all) != 0 {
		t.Errorf("of no directory: %v, %v", all, err)
	}
	s, err := ipam.Open(t.Context(), dir, "demo", ipam.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // holds the lock until then
	a, b := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::3")
	for _, addr := range []netip.Addr{a, b} {
		if err := s.Reserve(addr, spec.Attachment{Network: "demo", ContainerID: "c1", IfName: "eth0"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "demo", "10.1.0.9"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := ipam.ReadLeases(dir, "demo")
	slices.SortFunc(all, func(x, y ipam.OwnedAddr) int { return x.Addr.Compare(y.Addr) })
	owner := ipam.Lease{ContainerID: "c1", IfName: "eth0"}
	want := []ipam.OwnedAddr{{Addr: a, Owner: owner}, {Addr: netip.MustParseAddr("10.1.0.9")}, {Addr: b, Owner: owner}}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("got %v, %v, want %v", all, err, want)
	}
	if l, err := ipam.ReadLease(dir, "demo", b); err != nil || l != owner {
		t.Errorf("got %v, %v, want %v", l, err, owner)
	}
	if _, err := ipam.ReadLease(dir, "demo", b.Next()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is none", err)
	}
	if _, err := ipam.ReadLease(dir, "../demo", b); err == nil {
		t.Error("a path is taken for the name of a network")
	}
}
