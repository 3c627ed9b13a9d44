package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/flock"
	"cnibox/spec"
)

const (
	defaultLock = "/run/cnibox/nft.lock"
	boundName   = "@cnibox-nft" // of a Unix socket without a file
	longestNap  = 5 * time.Millisecond
)

// acquire takes the lock under which our rule set is read and changed. The
// kernel makes a batch at once, but knows nothing of what was read before it. The
// error is the context's if that ends first, or context.DeadlineExceeded after
// [flock.Timeout], with code 11.
//
// Where the lock's directory cannot be written, as in a user namespace, a
// bound socket without a file takes its place: such names belong to one
// network namespace, as the rule set does.
func (t *Table) acquire(ctx context.Context) (unlock func(), err error) {
	err = os.Mkdir(filepath.Dir(t.lock), 0o700)
	if err == nil || errors.Is(err, os.ErrExist) {
		unlock, err = flock.Exclusive(ctx, t.lock, 0o600)
	}
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrNotExist) {
		unlock, err = t.bound(ctx)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return nil, spec.Errorf(spec.CodeTryAgain, "nft: %w", err)
	case err != nil:
		return nil, fmt.Errorf("nft: %w", err)
	}
	return unlock, nil
}

// bound waits until it can bind the name in the namespace of the table. Closing the
// socket is the release, also when the process dies. Nobody is told when the
// name becomes free, so it is tried again after a nap.
func (t *Table) bound(ctx context.Context) (func(), error) {
	var fd int
	err := t.ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	ctx, cancel := flock.WithTimeout(ctx)
	defer cancel()
	for nap := 50 * time.Microsecond; ; nap = min(2*nap, longestNap) {
		err := unix.Bind(fd, &unix.SockaddrUnix{Name: boundName})
		if err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			unix.Close(fd)
			return nil, fmt.Errorf("lock %s: %w", boundName, err)
		}
		select {
		case <-ctx.Done():
			unix.Close(fd)
			return nil, fmt.Errorf("lock %s: held by another process: %w", boundName, ctx.Err())
		case <-time.After(nap):
		}
	}
}
