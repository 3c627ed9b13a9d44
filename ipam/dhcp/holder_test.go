package dhcp

import (
	"net/netip"
	"testing"
)

// A discardStore is a store that discards everything.
type discardStore struct{}

func (discardStore) Save(*State) error { return nil }
func (discardStore) Kept() bool        { return true }
func (discardStore) Drop() error       { return nil }

// IPv4 is the first of two leases in any order of arrival.
func TestLeaseOrder(t *testing.T) {
	h := Resume(State{}, Settings{}, discardStore{})
	v4 := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24")}
	v6 := &Lease{Address: netip.MustParsePrefix("fd09::10/128")}
	for _, l := range []*Lease{v6, v4, v6, v4} {
		if err := h.put(l); err != nil {
			t.Fatal(err)
		}
		if list := h.Leases(); len(list) == 2 && (list[0] != v4 || list[1] != v6) || list[0] != v6 && list[0] != v4 {
			t.Errorf("after %s: %v", l.Address, list)
		}
	}
	if n := len(h.Leases()); n != 2 {
		t.Errorf("%d leases", n)
	}
}
