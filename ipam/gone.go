package ipam

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnibox/cnibox/spec"
)

// mostGone is the largest number of leases of a full set that are checked, since each takes some 50
// µs while the store is locked.
const mostGone = 8192

// freeGone frees the leases of a range set whose owners are gone, and returns their addresses in
// the order in which ADD tries them. known has all leases.
func (s *Store) freeGone(i int, set RangeSet, known map[netip.Addr]Lease) (freed []netip.Addr) {
	s.eachGone(i, set, known, func(a netip.Addr, l Lease) bool {
		if err := s.free(a); err != nil {
			s.o.Warn("free %s: %v", a, err)
			return true
		}
		s.remark(l)
		s.o.Warn("the addresses of network %s are used up: %s is freed, as the network namespace of %s is gone", s.network, a, l)
		freed = append(freed, a)
		return true
	})
	return freed
}

// someGone reports whether freeGone would free an address.
func (s *Store) someGone(i int, set RangeSet, known map[netip.Addr]Lease) (some bool) {
	s.eachGone(i, set, known, func(netip.Addr, Lease) bool {
		some = true
		return false
	})
	return some
}

// eachGone calls fn for the leases of a range set whose owners are gone, until fn returns false. GC
// handles leases without an interface.
func (s *Store) eachGone(i int, set RangeSet, known map[netip.Addr]Lease, fn func(netip.Addr, Lease) bool) {
	if s.o.Gone == nil || s.o.KeepAcrossBoots {
		return
	}
	for n, a := range s.inOrder(i, set, known) {
		if n == mostGone {
			return
		}
		l, st, err := s.leases.lease(a)
		if err != nil || l.IfName == "" {
			continue
		}
		o := spec.Attachment{Network: s.network, ContainerID: l.ContainerID, IfName: l.IfName}
		if s.o.Gone(o, a, time.Unix(st.Mtim.Unix())) && !fn(a, l) {
			return
		}
	}
}

// inOrder returns the addresses of a set in the order in which ADD tries them; mostly the address
// whose lease is oldest comes first.
func (s *Store) inOrder(i int, set RangeSet, known map[netip.Addr]Lease) []netip.Addr {
	var used []netip.Addr
	for a := range known {
		if set.Contains(a) && !set.gateway(a) {
			used = append(used, a)
		}
	}
	slices.SortFunc(used, netip.Addr.Compare)
	at, _ := slices.BinarySearchFunc(used, s.first(i, set), netip.Addr.Compare)
	return slices.Concat(used[at:], used[:at])
}
