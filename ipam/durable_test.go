package ipam_test

import (
	"slices"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/ipam"
)

// With leases that outlive a power cut, new directories are synced before the first lease is
// written, even if the process that made them was killed before it synced them. Later ADDs do not
// sync them again.
func TestDirectoriesSyncedBeforeFirstLease(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	keep := ipam.Options{KeepAcrossBoots: true}
	calls := func(id string) (done []string) {
		fault.Hook = func(what string) error { done = append(done, what); return nil }
		defer func() { fault.Hook = nil }()
		mustAdd(t, dir, keep, r, owner(id))
		return done
	}
	withFault(2, func() { // the first change creates the network's directory
		if _, err := add(t, dir, keep, r, owner("a")); err == nil {
			t.Error("the first ADD did not fail")
		}
	})
	first := calls("a")
	if sync, lock := slices.Index(first, "ipam: sync directories"), slices.Index(first, "ipam: create lock"); sync < 0 || lock < sync {
		t.Errorf("changes of the first ADD: %q", first)
	}
	if second := calls("b"); slices.Contains(second, "ipam: sync directories") {
		t.Errorf("changes of the second ADD: %q", second)
	}
}
