package chain

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/spec"
)

// lockFile is in the cache's folder. A container or network is one byte of it,
// far behind its end, so there is nothing to create and to clean up for each.
// POSIX record locks would end with any descriptor of the file that the process
// closes; those of open file descriptions do not (Linux 3.15).
const lockFile = "cnibox.lock"

const defaultLockTimeout = 2 * time.Minute

// lockContainer waits until no other verb runs for a container: the
// specification allows one at a time, over all its attachments.
//
// libcni leaves that to its callers, and cnitool does nothing about it. The error is
// the context's if that ends first. The function returned gives the lock back.
func (c *Cache) lockContainer(ctx context.Context, id string) (func(), error) {
	return c.lock(ctx, "container "+id, unix.F_WRLCK, "another verb runs for container "+id)
}

// lockNetwork is shared among ADD, DEL and CHECK and exclusive for GC. It is
// taken before that of a container, always.
// A GC that meets an ADD would free what that has just taken (cni#981); verbs of
// different containers do not wait for each other.
func (c *Cache) lockNetwork(ctx context.Context, network string, exclusive bool) (func(), error) {
	kind := int16(unix.F_RDLCK)
	if exclusive {
		kind = unix.F_WRLCK
	}
	return c.lock(ctx, "network "+network, kind, "network "+network+" is in use")
}

// lock takes one byte of the lock file by an open file description lock
// (fcntl(2), F_OFD_SETLK), which ends with the process at the latest. Two names
// on one byte wait for each other needlessly: that is one in 2^62.
// The error says that it is busy only when the context, or [Cache.LockTimeout], ended while
// it was.
func (c *Cache) lock(ctx context.Context, name string, kind int16, busy string) (func(), error) {
	if err := fault.Check("lock " + name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.LockTimeout, defaultLockTimeout))
	defer cancel()
	path := filepath.Join(c.Dir, lockFile)
	fd, err := -1, os.MkdirAll(c.Dir, 0o700)
	if err == nil {
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err != nil {
			err = &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
	if err == nil {
		if err = lockByte(ctx, fd, name, kind); err == nil {
			return func() { unix.Close(fd) }, nil
		}
		unix.Close(fd)
		if ctx.Err() != nil { // somebody has it for long
			return nil, spec.Errorf(spec.CodeTryAgain, "%s: lock %s: %w", busy, path, err)
		}
	}
	return nil, spec.Errorf(spec.CodeIO, "no lock for %s in the cache: %w", name, err)
}

// lockByte tries at once and then waits in the kernel, on a descriptor and a
// goroutine that may outlive the call: a lock that comes after the end of ctx is
// given back where it comes.
// The lock is the description's, so it stays with the caller's descriptor when the
// waiting one is closed.
func lockByte(ctx context.Context, fd int, name string, kind int16) error {
	sum := sha512.Sum512([]byte(name))
	at := unix.Flock_t{
		Type: kind, Whence: io.SeekStart, Len: 1,
		// Offsets are signed and 63 bits long; one bit less keeps Start+Len from overflow.
		Start: int64(binary.BigEndian.Uint64(sum[:8]) >> 2),
	}
	err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &at)
	// Both errors say that the lock is taken (fcntl(2)).
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
		return err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // the same description
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() {
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			err = unix.FcntlFlock(uintptr(own), unix.F_OFD_SETLKW, &at)
		}
		unix.Close(own)
		got <- err
	}()
	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
