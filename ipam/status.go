package ipam

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Exhausted returns the index of the first range set in which ADD would find no free address; -1:
// there is none. Leases without an owner, and leases whose owners are gone, count as free, since
// ADD reclaims them.
func Exhausted(s *Store, sets []RangeSet) (int, error) {
	if err := s.load(); err != nil {
		return -1, err
	}
	for i, set := range sets {
		if s.someFree(i, set) {
			continue
		}
		taken, err := s.taken() // lists only the names, without reading the leases
		if err != nil {
			return -1, err
		}
		if used(set, taken) < set.Usable() {
			continue
		}
		known, err := s.Leases()
		if err != nil {
			return -1, err
		}
		if used(set, known) >= set.Usable() && !s.someGone(i, set, known) {
			return i, nil
		}
	}
	return -1, nil
}

// used counts the addresses of a set that are keys of the map and that ADD could lease.
func used[T any](set RangeSet, leases map[netip.Addr]T) (n uint64) {
	for a := range leases {
		if set.Contains(a) && !set.gateway(a) {
			n++
		}
	}
	return n
}

// someFree reports whether one of the addresses that ADD tries first has no lease. If so, the
// leases need not be counted.
func (s *Store) someFree(i int, set RangeSet) bool {
	a := s.first(i, set)
	for n := uint64(0); n < min(set.size(), scanAfter); n, a = n+1, set.after(a) {
		if !set.gateway(a) && errors.Is(unix.Fstatat(s.leases.fd, a.String(), new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW), os.ErrNotExist) {
			return true
		}
	}
	return false
}
