// Package flock locks a file and gives the unlock back.
package flock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// longest is the longest pause between two tries.
const longest = 5 * time.Millisecond

// Exclusive locks the file at path, which it creates with the given mode if
// it is missing; see [lock].
func Exclusive(ctx context.Context, path string, mode os.FileMode) (unlock func(), err error) {
	return lock(ctx, path, mode, unix.LOCK_EX)
}

// Shared is [Exclusive] for a lock that several may hold at once.
func Shared(ctx context.Context, path string, mode os.FileMode) (unlock func(), err error) {
	return lock(ctx, path, mode, unix.LOCK_SH)
}

// lock waits until the lock is there or ctx is done. A symbolic link at path
// is refused. The kernel gives the lock back when the process ends, however
// it ends.
func lock(ctx context.Context, path string, mode os.FileMode, how int) (func(), error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	pause := 50 * time.Microsecond
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(pause):
			pause = min(2*pause, longest)
		}
	}
}
