// Package ipam hands out addresses: ranges, the choice of an address, and the
// leases on disk, in the directory format of the reference's host-local.
//
// Below the data directory a network has a directory with a file for each
// leased address, whose content is the owner; the file lock, which every user
// of the directory holds while at work; and last_reserved_ip.N, a hint. What is
// ours alone lies in .cnibox/NETWORK beside it: an index from owners to
// addresses, the boot in which the leases were made, and files set aside.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/flock"
	"cnibox/spec"
)

const (
	ownDir    = ".cnibox" // no network's name begins with a dot
	asideDir  = "aside"
	lockName  = "lock"
	indexName = "index"
	bootName  = "boot"
)

var (
	// ErrTaken says that an address belongs to another attachment.
	ErrTaken = errors.New("already leased")

	errNoOwner = errors.New("no owner can be read in the lease")
	errView    = errors.New("the store was opened for reading")
)

// Options are the rare settings of a store; the zero value is usual.
type Options struct {
	// KeepAcrossBoots keeps leases for ever and syncs each to disk. Otherwise
	// those of an earlier boot of the machine are free.
	KeepAcrossBoots bool

	Boot string // the boot's ID; empty: the kernel's

	// Warn tells people what the store put right; nil: nobody.
	Warn func(format string, args ...any)
}

// A Store holds the leases of one network, and their lock, until Close. It is
// not for several goroutines.
type Store struct {
	o        Options
	network  string
	readOnly bool
	data     folder // the data directory
	leases   folder // the network's own
	own      folder // .cnibox/NETWORK; not open before it is needed
	unlock   func()

	x         *index
	indexFile int  // -1: the index is in memory alone
	changed   bool // the directory of the leases, by this store
}

// Open makes what is missing of the network's directories, locks the leases and
// reads none of them yet. The name of the network must be one, see
// [spec.CheckNetworkName], since it becomes a path.
func Open(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, true)
}

// OpenExisting is [Open] without making a directory: os.ErrNotExist says that
// the network has no leases.
func OpenExisting(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, false)
}

// View opens the leases for reading, beside others who read; os.ErrNotExist
// says that there are none. It changes nothing on disk, and neither do methods
// that would.
func View(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_SH, false)
}

func open(ctx context.Context, dir, network string, o Options, how int, create bool) (*Store, error) {
	if err := spec.CheckNetworkName(network); err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	none := folder{fd: -1}
	s := &Store{o: o, network: network, readOnly: how == unix.LOCK_SH, data: none, leases: none, own: none, indexFile: -1}
	err := s.openFolders(dir, create)
	if err == nil {
		s.unlock, err = s.lock(ctx, how)
	}
	if err != nil {
		s.release()
		return nil, fmt.Errorf("leases of network %s: %w", network, err)
	}
	return s, nil
}

func (s *Store) openFolders(dir string, create bool) (err error) {
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if s.data, err = openFolder(dir); err != nil {
		return err
	}
	s.leases, err = s.data.sub(s.network, create)
	return err
}

// lock locks the file that all users of the format lock. Where it is missing
// and the disk takes no new one, the directory is locked against our own kind.
func (s *Store) lock(ctx context.Context, how int) (func(), error) {
	fd, _, err := s.leases.openFile(lockName, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		if s.readOnly {
			return func() {}, nil
		}
		err = s.leases.change("create lock", lockName, func() (err error) {
			fd, _, err = s.leases.openFile(lockName, unix.O_RDONLY|unix.O_CREAT)
			return err
		})
	}
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		fd, err = s.leases.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, err
	}
	unlock, err := flock.Wait(ctx, fd, how)
	if err != nil {
		return nil, s.leases.fail("lock", lockName, err)
	}
	return unlock, nil
}

// Close writes the index's new state and gives the lock back. An index that
// cannot be written is no error: the next who opens the store makes a new one.
func (s *Store) Close() {
	if s.changed && s.indexFile >= 0 {
		if err := s.commit(); err != nil {
			s.o.Warn("index of the leases of network %s: %v", s.network, err)
		}
	}
	s.release()
}

func (s *Store) release() {
	s.dropIndex()
	s.own.close()
	s.leases.close()
	s.data.close()
	if s.unlock != nil {
		s.unlock()
	}
}

// Owned returns the addresses of an attachment, lowest first. A lease without an
// interface counts when there is none with it.
func (s *Store) Owned(o spec.Attachment) ([]netip.Addr, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	found, sound := s.lookup(o)
	if !sound {
		if err := s.rebuild(); err != nil {
			return nil, err
		}
		found, _ = s.lookup(o)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}

// lookup asks the index and verifies its answer; sound is false when the files
// say otherwise.
func (s *Store) lookup(o spec.Attachment) (found []netip.Addr, sound bool) {
	for _, l := range []Lease{{o.ContainerID, o.IfName}, {ContainerID: o.ContainerID}} {
		addrs, err := s.x.find(ownerHash(l))
		if err != nil {
			return found, false
		}
		for _, a := range addrs {
			if real, _, err := s.leases.lease(a); err != nil || real != l {
				return found, false
			}
			found = append(found, a)
		}
		if len(found) > 0 {
			break
		}
	}
	return found, true
}

// Holder returns the owner of an address, from its file; os.ErrNotExist if
// there is no lease.
func (s *Store) Holder(a netip.Addr) (Lease, error) {
	l, _, err := s.leases.lease(a)
	return l, err
}

// Reserve leases an address to an attachment. It is [ErrTaken], with the owner's
// name, if another has it, and fine if the attachment has it already.
func (s *Store) Reserve(a netip.Addr, o spec.Attachment) error {
	w, err := s.draft(o)
	if err != nil {
		return err
	}
	defer w.close()
	for range 2 {
		if ok, err := s.publish(w, a); ok || err != nil {
			return err
		}
		holder, err := s.Holder(a)
		switch {
		case err == nil && holder.Owns(o):
			return nil
		case err == nil:
			return fmt.Errorf("%w by %s", ErrTaken, holder)
		case errors.Is(err, errNoOwner):
			if err := s.setAside(a.String(), err); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("lease of %s: %w", a, unix.EBUSY)
}

func (s *Store) draft(o spec.Attachment) (*draft, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.readOnly {
		return nil, errView
	}
	var mark *unix.Timespec
	if s.x.boot != 0 {
		t := now(bootMark(s.x.boot))
		mark = &t
	}
	return s.leases.newDraft(Lease{o.ContainerID, o.IfName}, mark, s.o.KeepAcrossBoots)
}

// publish makes a draft the lease of an address; false: that is taken.
func (s *Store) publish(w *draft, a netip.Addr) (bool, error) {
	ok, err := s.leases.publish(w, a, s.o.KeepAcrossBoots)
	if !ok {
		return false, err
	}
	s.changed = true
	s.enter(entry{ownerHash(w.lease), a})
	return true, nil
}

// Release frees the addresses of an attachment and returns them; none is no
// error. It goes on past the first failure.
func (s *Store) Release(o spec.Attachment) (freed []netip.Addr, err error) {
	owned, err := s.Owned(o)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range owned {
		if err := s.free(a, o); err != nil {
			errs = append(errs, err)
			continue
		}
		freed = append(freed, a)
	}
	return freed, errors.Join(errs...)
}

// free removes one lease of an attachment.
func (s *Store) free(a netip.Addr, o spec.Attachment) error {
	if s.readOnly {
		return errView
	}
	if err := s.leases.remove(a.String()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.changed = true
	s.forget(a, Lease{o.ContainerID, o.IfName})
	s.forget(a, Lease{ContainerID: o.ContainerID})
	return nil
}

// Keep frees the leases whose owner is not valid and sets aside those without a
// readable owner. A lease without an interface is asked for with an empty one. It
// goes on past the first failure.
func (s *Store) Keep(valid func(spec.Attachment) bool) error {
	if err := s.load(); err != nil {
		return err
	}
	if s.readOnly {
		return errView
	}
	var errs []error
	entries, err := s.scan(func(a netip.Addr, l Lease, _ unix.Stat_t, bad error) bool {
		if bad != nil {
			errs = append(errs, s.setAside(a.String(), bad))
			return false
		}
		if valid(spec.Attachment{Network: s.network, ContainerID: l.ContainerID, IfName: l.IfName}) {
			return true
		}
		err := s.leases.remove(a.String())
		s.changed = true
		errs = append(errs, err)
		return err != nil
	})
	if err == nil {
		s.replaceIndex(entries, s.x.boot)
	}
	return errors.Join(append(errs, err)...)
}

// Last returns the address of a range set that was reserved last, where the
// search for the next begins; false: none that can be read.
func (s *Store) Last(set int) (netip.Addr, bool) { return s.leases.last(set) }

// SetLast notes the address for Last.
func (s *Store) SetLast(set int, a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	s.changed = true
	return s.leases.setLast(set, a)
}

// setAside moves what stands in the place of a lease out of the way, whatever
// it is, and tells where to.
func (s *Store) setAside(name string, why error) error {
	own, err := s.ownFolder(true)
	if err != nil {
		return err
	}
	aside, err := own.sub(asideDir, true)
	if err != nil {
		return err
	}
	defer aside.close()
	to := name + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	err = fault.Check("ipam: set aside")
	if err == nil {
		err = unix.Renameat2(s.leases.fd, name, aside.fd, to, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return s.leases.fail("set aside", name, err)
	}
	s.changed = true
	s.o.Warn("%v: moved to %s", why, filepath.Join(aside.path, to))
	return nil
}

// ownFolder opens the directory of what is ours alone.
func (s *Store) ownFolder(create bool) (folder, error) {
	if s.own.fd >= 0 {
		return s.own, nil
	}
	all, err := s.data.sub(ownDir, create)
	if err != nil {
		return all, err
	}
	defer all.close()
	s.own, err = all.sub(s.network, create)
	return s.own, err
}
