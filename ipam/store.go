// Package ipam hands out addresses: ranges, the choice of an address, and the
// leases on disk, in the directory format of the reference's host-local.
//
// Below the data directory a network has a directory with a file for each
// leased address, whose content is the owner; the file lock, which every user
// of the directory holds while at work; and last_reserved_ip.N, a hint. What is
// ours alone is in .cnibox/NETWORK beside it: for each boot an index from owners to
// addresses, and files that were no leases.
//
// Begin reading at [Allocate] (alloc.go) for what ADD does and at [Store.Release]
// (owners.go) for DEL. A new lease is a draft until it has its name (draft.go); the
// index is index.go; which boot a lease is of, boot.go;
// folder.go is all that opens or changes a file. The room knows no plugin and no
// configuration but ranges, and asks no clock for anything but names and marks.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/flock"
	"cnibox/spec"
)

const (
	// What the store adds to the reference's directory: hidden from tools that list
	// networks, and outside of the folder whose every address is a lease.
	ownDir   = ".cnibox" // no network's name begins with a dot
	asideDir = "aside"
	lockName = "lock"
)

var (
	// ErrTaken says that an address belongs to another attachment.
	ErrTaken = errors.New("already leased")

	errNoOwner = errors.New("no owner can be read in the lease")
	errView    = errors.New("the store was opened for reading")
)

// Options are the rare settings of a store; the zero value is usual.
// They must be the same for all who use a network: leases of one boot and of all boots
// do not go together.
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

	x       *index
	changed bool // the directory of the leases, by this store
}

// Open makes what is missing of the network's directories, locks the leases and
// reads none of them yet. The name of the network must be one, see
// [spec.CheckNetworkName], since it becomes a path.
// It waits for the lock as long as ctx lives, and no longer than [flock.Patience]; then the
// error is context.DeadlineExceeded. The caller closes the store.
func Open(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, true)
}

// OpenExisting is [Open] without making a directory: os.ErrNotExist says that
// the network has no leases.
// DEL and GC have no reason to make one.
func OpenExisting(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, false)
}

// View opens the leases for reading, beside others who read; os.ErrNotExist
// says that there are none. It changes nothing on disk, and neither do methods
// that would.
// CHECK, GET and STATUS use it: runtimes call them every few seconds, and an
// administrator's read-only disk must not fail them.
func View(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_SH, false)
}

// open is the three above; how is the kind of lock, LOCK_SH for a view.
func open(ctx context.Context, dir, network string, o Options, how int, create bool) (*Store, error) {
	if err := spec.CheckNetworkName(network); err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	none := folder{fd: -1}
	s := &Store{o: o, network: network, readOnly: how == unix.LOCK_SH, data: none, leases: none, own: none}
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

// openFolders opens the data directory and the network's in it. Only the path of
// the data directory may lead over symbolic links.
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
// The reference's lock file has mode 0750; ours has 0600, which both can open.
func (s *Store) lock(ctx context.Context, how int) (func(), error) {
	fd, _, err := s.leases.openFile(lockName, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		// No lock file, no user of the format is at work.
		if s.readOnly {
			return func() {}, nil
		}
		// The directories may be new, and a sync of a lease's own directory does not
		// reach those above it. A store without a lock file has no lease of ours yet.
		if s.o.KeepAcrossBoots {
			if err := s.data.change("sync directories", s.network, func() error { return unix.Syncfs(s.data.fd) }); err != nil {
				return nil, err
			}
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

// Close notes that the index knows of all leases, and gives the lock back. Where that
// cannot be noted, the next store scans them.
func (s *Store) Close() {
	if s.changed && s.x != nil && s.x.dir.fd >= 0 {
		if err := s.seal(); err != nil {
			s.o.Warn("index of the leases of network %s: %v", s.network, err)
		}
	}
	s.release()
}

// release closes what is open; the lock goes last.
func (s *Store) release() {
	s.dropIndex()
	s.own.close()
	s.leases.close()
	s.data.close()
	if s.unlock != nil {
		s.unlock()
	}
}
