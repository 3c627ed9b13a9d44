package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// load makes the index ready: the file if nothing changed since it was written,
// else a new one.
//
// Its stamp and the directory's time of change tell: the reference, or a hand, that
// makes or removes a lease moves the time on.
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
// An error is a stamp that no index has.
func (s *Store) stamp() stamp {
	var st unix.Stat_t
	if unix.Fstat(s.leases.fd, &st) != nil {
		return stamp{-1, -1}
	}
	return stamp{int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}
}

// scan reads all leases and returns those that keep wants. bad is set for one
// without a readable owner.
// Names that are no addresses are passed over. A lease that goes meanwhile is left
// out. The order is the directory's.
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
// In memory it serves this one call; the next makes another.
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

// writeIndex writes a file without a header, which no one takes for an index yet, and
// returns it open. It gets its name by a rename.
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

// dropIndex closes the index's file and forgets the table; the file stays.
func (s *Store) dropIndex() {
	if s.indexFile >= 0 {
		unix.Close(s.indexFile)
	}
	s.x, s.indexFile = nil, -1
}

// enter adds a lease to the index, which is never a reason to fail: an index
// that cannot follow is left behind with the old stamp.
// The lease file is there already; it is what counts.
func (s *Store) enter(e entry) {
	err := s.x.add(e)
	// Twice the size, from the entries it has: no lease is read.
	if errors.Is(err, errFull) {
		var entries []entry
		if entries, err = s.x.all(); err == nil {
			s.replaceIndex(append(entries, e), s.x.boot)
			return
		}
	}
	s.lost(err)
}

// forget takes a lease out of the index; one that it does not know is fine.
func (s *Store) forget(a netip.Addr, l Lease) { s.lost(s.x.remove(entry{ownerHash(l), a})) }

// lost gives up the file of an index that could not be changed. A scan of the
// leases takes its place when an owner is looked for.
// The file keeps an old stamp, by which the next process sees that it is stale.
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
