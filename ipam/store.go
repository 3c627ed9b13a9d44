// Package ipam leases addresses: ranges, the choice of an address, and the leases on disk, in the
// directory format of the reference's host-local.
//
// Each network has a directory below the data directory. It contains a file for each leased
// address, whose content is the owner; the file lock, which every user of the directory locks while
// it reads or writes there; and last_reserved_ip.N, where the next search begins. The reference
// does not have .cnibox/NETWORK, which has for each boot an index from owners to addresses
// (by-boot), and files that were not leases (quarantine).
//
// A verb opens a [Store], calls [Allocate], [Find], [Store.Release] or the like, and closes it.
// Errors with a code for the runtime are a [spec.Error]; all others are the disk's.
//
// Begin reading at [Allocate] (alloc.go) for ADD and at [Store.Release] (owners.go) for DEL. A new
// lease is a temporary file until it has its name (tempfile.go); index.go has the index, and
// boot.go the boot to which a lease belongs. directory.go has all code that opens or changes a
// file. The package does not depend on a plugin or on any configuration except ranges, and no clock
// decides what is leased.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/spec"
)

const (
	// The directory that this package adds to the reference's directories. Tools that list networks
	// do not show it, and it is outside the directories in which each address is a lease.
	ownDir        = ".cnibox" // network names do not begin with a dot
	quarantineDir = "quarantine"
	lockName      = "lock"
)

var (
	// ErrTaken reports that an address belongs to another attachment.
	ErrTaken = errors.New("already leased")

	errNoOwner = errors.New("no owner can be read in the lease")
	errOwn     = errors.New("leased to it already")
	errView    = errors.New("the store was opened for reading")
)

// Options are the rare settings of a store; the zero value is the usual one. All calls for a
// network must use the same options: leases of one boot and leases of all boots cannot be mixed.
type Options struct {
	// KeepAcrossBoots keeps leases until they are released and syncs each to disk. Otherwise leases
	// of an earlier boot are free.
	KeepAcrossBoots bool

	Boot string // the boot's ID; empty: the kernel's

	// Gone reports whether the owner of an address is known to be gone. It is called for leases of
	// a set without a free address; these leases are freed then. nil: no owner is gone. since is
	// when the lease was made. Nothing is freed with KeepAcrossBoots.
	Gone func(o spec.Attachment, a netip.Addr, since time.Time) bool

	// Warn receives what the store corrected; nil: it is not reported.
	Warn func(format string, args ...any)
}

// A Store has the leases of one network. It holds their lock until Close. Its methods must not be
// called concurrently; the zero value is not usable.
type Store struct {
	o        Options
	network  string
	readOnly bool
	data     directory // the data directory
	leases   directory // the network's own
	ownDir   directory // .cnibox/NETWORK; opened when it is needed
	unlock   func()

	x *index
}

// Open creates the missing directories of the network and locks the leases; it reads none yet. The
// network's name must pass [spec.CheckNetworkName], since it becomes a path. Open waits for the
// lock until ctx is done, and no longer than [flock.Timeout]; then the error is
// context.DeadlineExceeded. The caller closes the store.
func Open(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, true)
}

// OpenExisting is [Open] without creating a directory, for DEL and GC: the error is os.ErrNotExist
// if the network has no leases.
func OpenExisting(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_EX, false)
}

// OpenReadOnly opens the leases for reading, with a shared lock; the error is os.ErrNotExist if
// there are none. It changes nothing on disk; methods that would change something fail.
//
// CHECK, GET and STATUS use it: runtimes call them every few seconds, and they must work on a
// read-only disk.
func OpenReadOnly(ctx context.Context, dir, network string, o Options) (*Store, error) {
	return open(ctx, dir, network, o, unix.LOCK_SH, false)
}

// open implements the three functions above; how is the kind of lock, LOCK_SH for a read-only
// store.
func open(ctx context.Context, dir, network string, o Options, how int, create bool) (*Store, error) {
	if err := spec.CheckNetworkName(network); err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	none := directory{fd: -1}
	s := &Store{o: o, network: network, readOnly: how == unix.LOCK_SH, data: none, leases: none, ownDir: none}
	err := s.openDirectories(dir, create)
	if err == nil {
		s.unlock, err = s.lock(ctx, how)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("leases of network %s: %w", network, err)
	}
	return s, nil
}

// openDirectories opens the data directory and the network's directory in it. It follows symbolic
// links only in the path of the data directory.
func (s *Store) openDirectories(dir string, create bool) (err error) {
	s.data, err = openDirectory(dir)
	if create && errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		s.data, err = openDirectory(dir)
	}
	if err != nil {
		return err
	}
	s.leases, err = s.data.sub(s.network, create)
	return err
}

// lock locks the file that all users of the format lock. If the file is missing and cannot be
// created, it locks the directory instead, which only users of this package respect. The
// reference's lock file has mode 0750; ours has 0600, which both can open.
func (s *Store) lock(ctx context.Context, how int) (func(), error) {
	fd, _, err := s.leases.openFile(lockName, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		// Without a lock file no user of the format has the lock.
		if s.readOnly {
			return func() {}, nil
		}
		// The directories may be new, and a sync of the directory of a lease does not include its
		// parents. A store without a lock file has none of our leases yet.
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

// Close closes the open files, and releases the lock last.
func (s *Store) Close() {
	if s.x != nil {
		s.x.dir.close()
	}
	s.ownDir.close()
	s.leases.close()
	s.data.close()
	if s.unlock != nil {
		s.unlock()
	}
}
