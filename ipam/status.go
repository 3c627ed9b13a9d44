package ipam

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Exhausted returns the index of the first range set in which ADD would find no free address;
// -1: there is none. Leases without an owner, and those of owners that are gone, count as free,
// since ADD reclaims them.
func Exhausted(s *Store, sets []RangeSet) (int, error) {
	if err := s.load(); err != nil {
		return -1, err
	}
	for i, set := range sets {
		if s.someFree(i, set) {
			continue
		}
		known, err := s.entries()
		if err != nil {
			return -1, err
		}
		used := uint64(0)
		for _, a := range known {
			if set.Contains(a) && !set.gateway(a) {
				used++
			}
		}
		if used >= set.Usable() && !s.someGone(i, set, known) {
			return i, nil
		}
	}
	return -1, nil
}

// someFree reports whether one of the addresses that ADD tries first has no lease, which
// spares counting the leases.
func (s *Store) someFree(i int, set RangeSet) bool {
	a := s.first(i, set)
	for n := uint64(0); n < min(set.size(), dense); n, a = n+1, set.after(a) {
		if !set.gateway(a) && errors.Is(unix.Fstatat(s.leases.fd, a.String(), new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW), os.ErrNotExist) {
			return true
		}
	}
	return false
}
