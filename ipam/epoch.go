package ipam

import (
	"cmp"
	"errors"
	"hash/fnv"
	"io"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/boot"
)

// Nothing with a network namespace outlives a boot, so leases of an earlier one
// are free. Clocks are not asked, since small boards have none. Two facts tell,
// both in the inode, which a journal keeps in order without any sync:
//
//   - the symbolic link boot, whose target is the ID of the boot in which the
//     store was last changed;
//   - the nanoseconds of a lease's time of modification, which are a hash of the
//     ID of the boot the lease is of (bootMark).
//
// A lease with another mark was made by the reference; the first scan that meets
// it takes it into the present boot.

// bootHash names the present boot; 0: leases are kept across boots, or the kernel
// does not tell.
// A kernel that does not tell is one without /proc; nothing is freed there.
func (s *Store) bootHash() uint64 {
	id := s.bootID()
	if id == "" {
		return 0
	}
	return hashBoot(id)
}

// bootID returns the ID of the present boot; empty: leases outlive it, or it is not told.
func (s *Store) bootID() string {
	if s.o.KeepAcrossBoots {
		return ""
	}
	return cmp.Or(s.o.Boot, boot.ID())
}

// hashBoot is the form in which a boot's ID is compared; never 0.
// FNV-1a: boots are to be told apart, nobody gains from making two alike.
func hashBoot(id string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, id)
	return h.Sum64() | 1
}

// bootMark returns the nanoseconds of the leases of a boot.
// From 0 to 999,999,999. A file system with coarser times cuts it, and its leases
// look as if the reference had made them: they are kept until DEL or GC.
func bootMark(boot uint64) int64 { return int64(boot % 1e9) }

// notedBoot returns the boot that the store was last changed in; 0: not noted.
// A store without a note is the reference's, or one that keeps leases across boots.
func (s *Store) notedBoot() uint64 {
	own, err := s.ownFolder(false)
	if err != nil {
		return 0
	}
	// A UUID has 36 bytes; a longer target is cut, and compares as another boot's.
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(own.fd, bootName, buf)
	if err != nil || n == 0 {
		return 0
	}
	return hashBoot(string(buf[:n]))
}

// noteBoot replaces the note by a rename, so that one of the two boots stands
// there at any moment.
// A symbolic link is made and read in one call each, and is never half written.
func (s *Store) noteBoot() error {
	own, err := s.ownFolder(true)
	if err != nil {
		return err
	}
	const fresh = bootName + ".new"
	return own.change("note boot", bootName, func() error {
		unix.Unlinkat(own.fd, fresh, 0) // of a process that was killed here
		if err := unix.Symlinkat(s.bootID(), own.fd, fresh); err != nil {
			return err
		}
		return unix.Renameat(own.fd, fresh, own.fd, bootName)
	})
}

// rebuild makes the index from the lease files. It frees the leases of an earlier
// boot, takes all others into this one, and then notes the boot: in that
// order, so that it is done again if the process is killed on the way, or if
// any of it fails, which the index's boot of 0 says.
func (s *Store) rebuild() error {
	boot, noted := s.bootHash(), uint64(0)
	if boot != 0 {
		noted = s.notedBoot()
	}
	var errs []error
	// Only the mark of the boot on note frees a lease: others may be of anyone.
	entries, err := s.scan(func(a netip.Addr, _ Lease, st unix.Stat_t, bad error) bool {
		if bad != nil {
			return false // until the address is wanted
		}
		mark := int64(st.Mtim.Nsec)
		if noted != 0 && noted != boot && mark == bootMark(noted) {
			err := s.expire(a)
			errs = append(errs, err)
			return err != nil
		}
		// Without the mark it is taken in again at the next boot.
		if boot != 0 && mark != bootMark(boot) && !s.readOnly {
			marked := unix.NsecToTimespec(unix.TimespecToNsec(st.Mtim) - mark + bootMark(boot))
			t := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, marked}
			unix.UtimesNanoAt(s.leases.fd, a.String(), t, unix.AT_SYMLINK_NOFOLLOW)
		}
		return true
	})
	if err != nil {
		return err
	}
	err = errors.Join(errs...)
	if err == nil && boot != 0 && noted != boot && !s.readOnly {
		err = s.noteBoot()
	}
	if err != nil {
		// The index is built all the same; its boot of 0 has all of this tried again.
		s.o.Warn("leases of network %s are kept across boots: %v", s.network, err)
		boot = 0
	}
	s.replaceIndex(entries, boot)
	return nil
}

// expire frees a lease of an earlier boot; a view only takes it for free.
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
