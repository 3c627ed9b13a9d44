package ipam

import (
	"cmp"
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/state"
)

// Nothing that has a network namespace outlives a boot, so leases of an earlier boot are free. No
// clock is used, since small boards have none: the marks of each boot have a directory (index.go).
// A lease without a mark was made by the reference. It gets a mark in the next boot that begins
// here, and the boot after that frees it.

const (
	byBootDir = "by-boot"
	nextDir   = "next" // the directory of a boot while it is written
	keptBoot  = "kept" // replaces a boot's ID if leases are kept across boots
)

// bootName returns the name of the directory of this boot.
func (s *Store) bootName() string {
	if s.o.KeepAcrossBoots {
		return keptBoot
	}
	return cmp.Or(s.o.Boot, state.BootID(), keptBoot) // without /proc a boot has no ID
}

// bootDirectory opens the directory of this boot.
func (s *Store) bootDirectory() (directory, error) {
	all, err := s.byBoot(false)
	if err != nil {
		return all, err
	}
	defer all.close()
	return all.sub(s.bootName(), false)
}

// byBoot opens the directory with a directory for each boot.
func (s *Store) byBoot(create bool) (directory, error) {
	ownDir, err := s.ownDirectory(create)
	if err != nil {
		return ownDir, err
	}
	return ownDir.sub(byBootDir, create)
}

// beginBoot runs in the first store of a boot: it frees the leases of earlier boots and marks all
// others. If it is interrupted, the next store repeats it. A read-only store, and one that cannot
// free these leases, only treats them as free.
func (s *Store) beginBoot() error {
	s.x = &index{dir: directory{fd: -1}, expired: s.earlierBoots()}
	if s.readOnly {
		return nil
	}
	var errs []error
	for e := range s.x.expired {
		if l, _, err := s.leases.lease(e.addr); err == nil && linkName(l) == e.mark {
			errs = append(errs, s.free(e.addr))
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.o.Warn("leases of network %s are kept across boots: %v", s.network, err)
		return nil
	}
	s.x.expired = nil
	left := map[Lease][]netip.Addr{}
	if err := s.scan(func(a netip.Addr, l Lease) { left[l] = append(left[l], a) }); err != nil {
		s.x = nil
		return err
	}
	if err := s.beginIndex(left); err != nil {
		s.o.Warn("index of the leases of network %s: %v", s.network, err)
	}
	return nil
}

// beginIndex writes the index of a new boot, which appears in one step.
func (s *Store) beginIndex(leases map[Lease][]netip.Addr) error {
	all, err := s.byBoot(true)
	if err != nil {
		return err
	}
	defer all.close()
	if err := s.dropEarlierBoots(); err != nil {
		return err
	}
	dir, err := s.ownDir.sub(nextDir, true)
	if err != nil {
		return err
	}
	err = dir.update(leases)
	if err == nil {
		err = all.change("rename", s.bootName(), func() error {
			return unix.Renameat(s.ownDir.fd, nextDir, all.fd, s.bootName())
		})
	}
	if err != nil {
		dir.close()
		return err
	}
	s.x.dir = dir
	return nil
}

// earlierBoots returns the leases that are free, except for addresses that the reference has given
// to another owner since then. Leases under [keptBoot] are not free: the configuration has kept
// them until now, and the next boot frees them.
func (s *Store) earlierBoots() map[entry]bool {
	free := map[entry]bool{}
	if s.bootName() == keptBoot {
		return free
	}
	_ = s.eachEarlierBoot(func(_ directory, id string, dir directory) error {
		if id == keptBoot {
			return nil
		}
		return dir.entries(free)
	})
	return free
}

// eachEarlierBoot opens the directories of other boots than this one.
func (s *Store) eachEarlierBoot(each func(all directory, id string, dir directory) error) error {
	all, err := s.byBoot(false)
	if err != nil {
		return err
	}
	defer all.close()
	ids, err := all.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if id == s.bootName() {
			continue
		}
		dir, err := all.sub(id, false)
		if err != nil {
			continue // not a directory of this package
		}
		errs = append(errs, each(all, id, dir))
		dir.close()
	}
	return errors.Join(errs...)
}

// FreeEarlierBoots frees the leases of earlier boots. Otherwise the first call that needs the
// leases does.
func (s *Store) FreeEarlierBoots() error { return s.load() }

// dropEarlierBoots deletes the directories of earlier boots, whose leases are free or get their
// marks in this boot's directory.
func (s *Store) dropEarlierBoots() error {
	return s.eachEarlierBoot(func(all directory, id string, dir directory) error {
		names, err := dir.names()
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := dir.remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return all.change("rmdir", id, func() error { return unix.Unlinkat(all.fd, id, unix.AT_REMOVEDIR) })
	})
}
