package ipam

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"cnibox/internal/disk"
)

// Leases returns all leases with a readable owner; those of earlier boots are free, and not
// among them.
func (s *Store) Leases() (map[netip.Addr]Lease, error) {
	addrs, err := s.entries()
	if err != nil {
		return nil, err
	}
	leases := make(map[netip.Addr]Lease)
	for _, a := range addrs {
		l, err := s.Holder(a)
		switch {
		case err == nil:
			leases[a] = l
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errNoOwner):
			return nil, err
		}
	}
	return leases, nil
}

// Delete deletes the directories of the network, leases and all; the data directory stays. The
// store can only be closed after that. The directory with the lock goes last: what was
// interrupted is deleted by the next call.
func (s *Store) Delete() error {
	if s.readOnly {
		return errView
	}
	s.dropIndex()
	s.own.close()
	s.own.fd = -1
	s.changed = false
	for _, path := range []string{filepath.Join(s.data.path, ownDir, s.network), filepath.Join(s.data.path, s.network)} {
		if err := disk.Change("ipam: remove "+path, func() error { return os.RemoveAll(path) }); err != nil {
			return err
		}
	}
	return nil
}
