package chain

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/spec"
)

const defaultLockTimeout = 2 * time.Minute

// lockContainer waits until no other verb runs for a container: the specification allows one at a
// time, over all its attachments. libcni leaves this to its callers, and cnitool does not lock.
//
// The error is the context's if that ends first. The lock file stays while the container has an
// attachment: on ext4, creating and removing it takes 0.1 ms.
func (c *Cache) lockContainer(ctx context.Context, id string) (unlock func(), err error) {
	return c.lock(ctx, "container", id, unix.LOCK_EX, "another verb runs for container "+id)
}

// Running reports whether a verb runs for a container. It tries the lock of lockContainer, and has it for
// a moment; it is false where the file cannot be opened.
func (c *Cache) Running(id string) bool {
	fd, err := unix.Open(c.lockFile("container", id), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// removeLock removes the lock file of a container; otherwise one would stay for each container. It
// is the last step under the lock.
func (c *Cache) removeLock(id string) {
	_ = disk.Remove(c.lockFile("container", id)) // after an error the next verb of the container removes it
}

// Used reports whether a verb such as ADD has ever locked a network; [Runner.RemoveNetwork] resets it.
func (c *Cache) Used(network string) bool {
	_, err := os.Lstat(c.lockFile("network", network))
	return err == nil
}

// lockNetwork locks a network: shared for ADD, DEL, CHECK and GET, exclusive for GC. Its lock is always
// taken before that of a container.
//
// A GC during an ADD would free what the ADD has just allocated (cni#981); verbs of different
// containers do not wait for each other.
func (c *Cache) lockNetwork(ctx context.Context, network string, exclusive bool) (unlock func(), err error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	return c.lock(ctx, "network", network, how, "network "+network+" is in use")
}

// patience is how long a verb waits for others.
func (c *Cache) patience() time.Duration { return cmp.Or(c.LockTimeout, defaultLockTimeout) }

// lock locks a file by flock(2). The error has code 11 and the text busy if the context, or
// [Cache.LockTimeout], ended while another process had the lock.
func (c *Cache) lock(ctx context.Context, kind, name string, how int, busy string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	file := c.lockFile(kind, name)
	unlock, err = flock.Lock(ctx, file, 0o600, how)
	if errors.Is(err, os.ErrNotExist) {
		if c.Creating != nil {
			c.Creating()
		}
		if err = os.MkdirAll(filepath.Dir(file), 0o700); err == nil {
			unlock, err = flock.Lock(ctx, file, 0o600, how)
		}
	}
	switch {
	case err == nil:
		return unlock, nil
	case cannotLock(err):
		return func() {}, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, spec.Errorf(spec.CodeTryAgain, "%w", &lockedError{busy, err})
	}
	return nil, spec.Errorf(spec.CodeIO, "no lock for %s %s in the cache: %w", kind, name, err)
}

// A lockedError is the error about a lock that another verb has.
type lockedError struct {
	busy string // which one, in a few words
	err  error
}

func (l *lockedError) Error() string { return l.busy + ": " + l.err.Error() }

func (l *lockedError) Unwrap() error { return l.err }

// cannotLock reports whether the lock file is missing and cannot be created. Then no entry can be
// created either: no ADD runs, and the other verbs must work.
func cannotLock(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// tryLock is lock without waiting; nil: another process has the lock, or it failed.
func (c *Cache) tryLock(kind, name string, how int) (unlock func()) {
	file := c.lockFile(kind, name)
	unlock, err := flock.Try(file, 0o600, how)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(file), 0o700); err == nil {
			unlock, err = flock.Try(file, 0o600, how)
		}
	}
	switch {
	case err == nil:
		return unlock
	case cannotLock(err):
		return func() {}
	}
	return nil
}

// locks has the locks of several attachments, and never waits for one.
type locks struct {
	cache *Cache
	held  map[string]func() // unlock, by kind and name; nil: another process has the lock
}

// locks returns an empty set of locks.
func (c *Cache) locks() *locks { return &locks{c, map[string]func(){}} }

// try takes a lock, unless it is in the set, and reports whether this process has it.
func (l *locks) try(kind, name string, how int) bool {
	unlock, known := l.held[kind+" "+name]
	if !known {
		unlock = l.cache.tryLock(kind, name, how)
		l.held[kind+" "+name] = unlock
	}
	return unlock != nil
}

// has reports whether a lock is in the set and this process has it.
func (l *locks) has(kind, name string) bool { return l.held[kind+" "+name] != nil }

// unlock releases all locks.
func (l *locks) unlock() {
	for _, unlock := range l.held {
		if unlock != nil {
			unlock()
		}
	}
}

// lockFile returns the path KIND-NAME of a lock file. Names that are cut to the same path
// share a lock.
func (c *Cache) lockFile(kind, name string) string {
	file := kind + "-" + name
	return filepath.Join(c.Dir, "cnibox", "locks", file[:min(len(file), unix.NAME_MAX)])
}
