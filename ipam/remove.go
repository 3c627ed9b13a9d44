package ipam

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/disk"
)

// Leases returns all leases with a readable owner. Leases of earlier boots are free and not
// included.
func (s *Store) Leases() (map[netip.Addr]Lease, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	leases := make(map[netip.Addr]Lease)
	err := s.scan(func(a netip.Addr, l Lease) { leases[a] = l })
	return leases, err
}

// Delete deletes the directories of the network with its leases; the data directory stays. After
// that the store can only be closed. The directory with the lock is deleted last, so that the next
// call can delete what an interrupted one left.
func (s *Store) Delete() error {
	if s.readOnly {
		return errView
	}
	for _, path := range []string{filepath.Join(s.data.path, ownDir, s.network), filepath.Join(s.data.path, s.network)} {
		if err := disk.Change("ipam: remove "+path, func() error { return os.RemoveAll(path) }); err != nil {
			return err
		}
	}
	return nil
}
