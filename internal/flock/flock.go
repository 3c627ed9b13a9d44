// Package flock locks files with flock(2), for files that several processes or goroutines change.
//
// The lock belongs to the open file description, so it excludes goroutines of one process as well
// as other processes, including the reference's plugins. It ends when unlock is called, or when the
// process ends in any way.
//
// Use [Exclusive] for a lock file, [Lock] for a shared lock or another time limit, and [Wait] for a
// file that is already open.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// Timeout is the longest wait for a lock. Locks are held for a few changes, so a process that holds
// one for longer hangs. Tests set it before they wait.
var Timeout = 30 * time.Second

// Exclusive is [Lock] for an exclusive lock, with a wait of at most [Timeout]; then the error is
// context.DeadlineExceeded.
func Exclusive(ctx context.Context, path string, mode os.FileMode) (unlock func(), err error) {
	until := time.Now().Add(Timeout)
	return lock(path, mode, func(fd int) (func(), error) { return wait(ctx, fd, unix.LOCK_EX, until) })
}

// Lock takes an flock(2) of the given kind, LOCK_EX or LOCK_SH, on the file at path and waits
// for it until ctx is done. A missing file is created with the given mode; only a regular file
// is locked. Errors are *os.PathError, around that of the context if that ended first.
//
// The holder of an exclusive lock may remove the file before it unlocks: then waiting processes
// create and lock a new one.
func Lock(ctx context.Context, path string, mode os.FileMode, how int) (unlock func(), err error) {
	return lock(path, mode, func(fd int) (func(), error) { return wait(ctx, fd, how, time.Time{}) })
}

// Try is [Lock] without waiting: the error is unix.EWOULDBLOCK if the lock is held.
func Try(path string, mode os.FileMode, how int) (unlock func(), err error) {
	return lock(path, mode, func(fd int) (func(), error) {
		if err := flock(fd, how|unix.LOCK_NB); err != nil {
			unix.Close(fd)
			return nil, err
		}
		return func() { unix.Close(fd) }, nil
	})
}

// lock opens the file and locks it by take, and repeats this if the file was removed meanwhile.
func lock(path string, mode os.FileMode, take func(fd int) (func(), error)) (unlock func(), err error) {
	// A symbolic link is rejected, and opening a pipe does not wait for a writer.
	const flags = unix.O_RDONLY | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fault.Done(fault.Locks, 1)
	for {
		fd, err := unix.Open(path, flags, uint32(mode.Perm()))
		if err != nil {
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		unlock, err := take(fd)
		if err != nil {
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			err = fmt.Errorf("not a regular file: %w", unix.EINVAL)
		}
		switch {
		case err != nil:
			unlock()
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		case st.Nlink > 0:
			return unlock, nil
		}
		unlock() // removed by the process that had the lock
	}
}

// Wait takes an flock(2) of the given kind, LOCK_EX or LOCK_SH, on an open
// file and waits for it until ctx is done, and no longer than [Timeout]. The error is the
// context's, or context.DeadlineExceeded. The descriptor is closed by unlock, and by Wait if
// it fails; the caller must not use it any more.
func Wait(ctx context.Context, fd, how int) (unlock func(), err error) {
	return wait(ctx, fd, how, time.Now().Add(Timeout))
}

// wait is [Wait] until the given time; the zero time: as long as ctx lasts. It takes a free lock
// without a timer, since the first timer starts Go's poller.
func wait(ctx context.Context, fd, how int, until time.Time) (unlock func(), err error) {
	err = flock(fd, how|unix.LOCK_NB)
	switch {
	case err == nil:
		return func() { unix.Close(fd) }, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		if !until.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, until)
			defer cancel()
		}
		return block(ctx, fd, how)
	}
	unix.Close(fd)
	return nil, err
}

// block waits in the kernel, on a goroutine that may outlive the call: it releases
// a lock that it gets after ctx is done.
func block(ctx context.Context, fd, how int) (func(), error) {
	got := make(chan error, 1)
	go func() { got <- flock(fd, how) }()
	select {
	case err := <-got:
		if err != nil {
			unix.Close(fd)
			return nil, err
		}
		return func() { unix.Close(fd) }, nil
	case <-ctx.Done():
		go func() {
			<-got
			unix.Close(fd)
		}()
		return nil, fmt.Errorf("held by another process: %w", ctx.Err())
	}
}

// flock is flock(2), repeated when a signal interrupts it. It is a variable for tests with a fake clock.
var flock = func(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
