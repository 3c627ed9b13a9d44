package ipam

import (
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
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
func (s *Store) bootHash() uint64 {
	id := s.bootID()
	if id == "" {
		return 0
	}
	return hashBoot(id)
}

func (s *Store) bootID() string {
	if s.o.KeepAcrossBoots {
		return ""
	}
	if s.o.Boot != "" {
		return s.o.Boot
	}
	id, err := readPath("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

func hashBoot(id string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, id)
	return h.Sum64() | 1
}

// bootMark returns the nanoseconds of the leases of a boot.
func bootMark(boot uint64) int64 { return int64(boot % 1e9) }

// notedBoot returns the boot that the store was last changed in; 0: not noted.
func (s *Store) notedBoot() uint64 {
	own, err := s.ownFolder(false)
	if err != nil {
		return 0
	}
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(own.fd, bootName, buf)
	if err != nil || n == 0 {
		return 0
	}
	return hashBoot(string(buf[:n]))
}

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

// load makes the index ready: the file if nothing changed since it was written,
// else a new one.
func (s *Store) load() error {
	if s.x != nil {
		return nil
	}
	own, err := s.ownFolder(false)
	if err != nil {
		return s.rebuild()
	}
	flags := unix.O_RDWR
	if s.readOnly {
		flags = unix.O_RDONLY
	}
	fd, st, err := own.openFile(indexName, flags)
	if err != nil {
		return s.rebuild()
	}
	s.indexFile = fd
	raw := make([]byte, headSize)
	if _, err := file(fd).ReadAt(raw, 0); err != nil {
		return s.rebuild()
	}
	h, err := decodeHead(raw, st.Size)
	if err != nil || h.boot != s.bootHash() || h.stamp != s.stamp() {
		return s.rebuild()
	}
	s.x = &index{h, onDisk(fd)}
	return nil
}

// stamp reads the time of modification of the directory of the leases.
func (s *Store) stamp() stamp {
	var st unix.Stat_t
	if unix.Fstat(s.leases.fd, &st) != nil {
		return stamp{-1, -1}
	}
	return stamp{int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}
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
		if boot != 0 && mark != bootMark(boot) && !s.readOnly {
			t := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: st.Mtim.Sec, Nsec: bootMark(boot)}}
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

// scan reads all leases and returns those that keep wants. bad is set for one
// without a readable owner.
func (s *Store) scan(keep func(a netip.Addr, l Lease, st unix.Stat_t, bad error) bool) ([]entry, error) {
	names, err := s.leases.names()
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		l, st, err := s.leases.lease(a)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if keep(a, l, st, err) && err == nil {
			entries = append(entries, entry{ownerHash(l), a})
		}
	}
	return entries, nil
}

// replaceIndex puts a new index in the place of the file, or keeps it in memory
// where that cannot be.
func (s *Store) replaceIndex(entries []entry, boot uint64) {
	s.dropIndex()
	im, x := newImage(entries, boot)
	s.x = x
	if s.readOnly {
		return
	}
	fd, err := s.writeIndex(im)
	if err != nil {
		s.o.Warn("index of the leases of network %s: %v", s.network, err)
		return
	}
	s.indexFile = fd
	s.x.space = onDisk(fd)
	s.changed = true // so that Close gives the stamp
}

// writeIndex writes a file without a header, which is none yet, and returns it open.
func (s *Store) writeIndex(im image) (int, error) {
	own, err := s.ownFolder(true)
	if err != nil {
		return -1, err
	}
	const fresh = indexName + ".new"
	if err := own.remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	fd := -1
	err = own.change("write", fresh, func() error {
		if fd, err = own.open(fresh, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600); err != nil {
			return err
		}
		if _, err := file(fd).WriteAt(im, 0); err != nil {
			return err
		}
		return unix.Renameat(own.fd, fresh, own.fd, indexName)
	})
	if err != nil && fd >= 0 {
		unix.Close(fd)
		unix.Unlinkat(own.fd, fresh, 0)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func (s *Store) dropIndex() {
	if s.indexFile >= 0 {
		unix.Close(s.indexFile)
	}
	s.x, s.indexFile = nil, -1
}

// enter adds a lease to the index, which is never a reason to fail: an index
// that cannot follow is left behind with the old stamp.
func (s *Store) enter(e entry) {
	err := s.x.add(e)
	if errors.Is(err, errFull) {
		var entries []entry
		if entries, err = s.x.all(); err == nil {
			s.replaceIndex(append(entries, e), s.x.boot)
			return
		}
	}
	s.lost(err)
}

func (s *Store) forget(a netip.Addr, l Lease) { s.lost(s.x.remove(entry{ownerHash(l), a})) }

// lost gives up the file of an index that could not be changed. A scan of the
// leases takes its place when an owner is looked for.
func (s *Store) lost(err error) {
	if err == nil {
		return
	}
	s.o.Warn("index of the leases of network %s: %v", s.network, err)
	entries, scanErr := s.scan(func(_ netip.Addr, _ Lease, _ unix.Stat_t, bad error) bool { return bad == nil })
	if scanErr != nil {
		s.o.Warn("leases of network %s: %v", s.network, scanErr)
	}
	boot := s.x.boot
	s.dropIndex()
	_, s.x = newImage(entries, boot)
}

// commit gives index and directory the same new stamp. The index goes first: a
// process killed between the two leaves them different. The stamp's
// nanoseconds are random, and no multiple of ten, so that no file system with
// coarser times takes it for its own.
func (s *Store) commit() error {
	nsec := rand.Int64N(1e8)*10 + 1 + rand.Int64N(9)
	t := now(nsec)
	s.x.stamp = stamp{int64(t.Sec), nsec}
	return s.data.change("stamp", s.network, func() error {
		if _, err := file(s.indexFile).WriteAt(s.x.encode(), 0); err != nil {
			return err
		}
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, t}
		return unix.UtimesNanoAt(s.data.fd, s.network, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}
