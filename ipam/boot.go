package ipam

import (
	"cmp"
	"errors"
	"hash/fnv"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/boot"
)

// Nothing with a network namespace outlives a boot, so leases of an earlier one are free.
// No clock is used, since small boards have none: the index of each boot lists the leases of
// it (index.go). A lease that is in no index was made by the reference; it is added to the
// index of the first boot that finds it.

const (
	byBootDir = "by-boot"
	keptBoot  = "kept" // instead of a boot's ID where leases are kept across boots

	// What releases before 0.2 had instead of the index.
	oldBoot  = "boot"  // a symbolic link to the ID of the boot
	oldIndex = "index" // a hash table
)

// bootName returns the name of the directory of this boot.
func (s *Store) bootName() string {
	if s.o.KeepAcrossBoots {
		return keptBoot
	}
	return cmp.Or(s.o.Boot, boot.ID(), keptBoot) // without /proc a boot has no ID
}

// bootDirectory opens the directory of this boot.
func (s *Store) bootDirectory(create bool) (directory, error) {
	all, err := s.byBoot(create)
	if err != nil {
		return all, err
	}
	defer all.close()
	return all.sub(s.bootName(), create)
}

// byBoot opens the directory that has one for each boot.
func (s *Store) byBoot(create bool) (directory, error) {
	own, err := s.ownDirectory(create)
	if err != nil {
		return own, err
	}
	return own.sub(byBootDir, create)
}

// expired are the leases of earlier boots.
type expired struct {
	owner   map[netip.Addr]string // the name of the owner's link
	oldNsec int64                 // nanoseconds of the times that an older release gave its leases; -1: none
}

// has reports whether a lease is of an earlier boot. One that the reference has given to
// another since is not.
func (e expired) has(a netip.Addr, l Lease, st unix.Stat_t) bool {
	return e.owner[a] == linkName(l) || int64(st.Mtim.Nsec) == e.oldNsec
}

// earlierBoots collects the leases that are free. Those under [keptBoot] are not: the
// configuration kept them until now, and the next boot frees them.
func (s *Store) earlierBoots() expired {
	e := expired{owner: map[netip.Addr]string{}, oldNsec: -1}
	now := s.bootName()
	if now == keptBoot {
		return e
	}
	if own, err := s.ownDirectory(false); err == nil {
		if old, err := own.target(oldBoot); err == nil && old != now {
			e.oldNsec = oldNsec(old)
		}
	}
	_ = s.eachEarlierBoot(func(_ directory, id string, dir directory) error {
		names, err := dir.names()
		if err != nil || id == keptBoot {
			return err
		}
		for _, name := range names {
			text, err := dir.target(name)
			if err != nil {
				continue
			}
			addrs, _ := parseTarget(text) // what cannot be read frees nothing
			for _, a := range addrs {
				e.owner[a] = name
			}
		}
		return nil
	})
	return e
}

// eachEarlierBoot opens the directories of boots that are not this one.
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
			continue // not one of this package
		}
		errs = append(errs, each(all, id, dir))
		dir.close()
	}
	return errors.Join(errs...)
}

// FreeEarlierBoots frees the leases of earlier boots, as the first call that needs the leases does.
func (s *Store) FreeEarlierBoots() error { return s.load() }

// dropEarlierBoots deletes the directories of earlier boots, whose leases are free or in
// the index of this one, and what an older release kept.
func (s *Store) dropEarlierBoots() error {
	err := s.eachEarlierBoot(func(all directory, id string, dir directory) error {
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
	if own, ownErr := s.ownDirectory(false); ownErr == nil {
		for _, name := range []string{oldBoot, oldIndex} {
			_ = unix.Unlinkat(own.fd, name, 0) // what else has these names may stay
		}
	}
	return err
}

// oldNsec is the nanoseconds of the time of modification that an older release gave the
// leases of a boot: a hash of its ID.
func oldNsec(id string) int64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return int64((h.Sum64() | 1) % 1e9)
}

// expire frees a lease of an earlier boot; a view only counts it as free.
func (s *Store) expire(a netip.Addr) error {
	if s.readOnly {
		return nil
	}
	s.changed = true
	err := s.leases.remove(a.String())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
