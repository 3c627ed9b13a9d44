package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

const defaultLock = "/run/cnibox/nft.lock"

// acquire takes the lock for reading and changing our rule set. The kernel applies a batch
// atomically, but does not know what was read before it. The error is the context's if that ends
// first, or context.DeadlineExceeded after [flock.Timeout], with code 11.
//
// Where the lock file cannot be created, as in a user namespace or with a read-only /run, it locks
// the network namespace itself, which has the rule set.
func (t *Table) acquire(ctx context.Context) (unlock func(), err error) {
	err = os.Mkdir(filepath.Dir(t.lock), 0o700)
	if err == nil || errors.Is(err, os.ErrExist) {
		unlock, err = flock.Exclusive(ctx, t.lock, 0o600)
	}
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrNotExist) {
		unlock, err = t.lockNS(ctx)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return nil, spec.Errorf(spec.CodeTryAgain, "nft: %w", err)
	case err != nil:
		return nil, fmt.Errorf("nft: %w", err)
	}
	return unlock, nil
}

// lockNS locks the namespace's file. It opens the file again, since locks on one open file
// description do not exclude each other.
func (t *Table) lockNS(ctx context.Context) (unlock func(), err error) {
	var ns *netns.NS
	err = t.ns.Do(func() (err error) {
		ns, err = netns.Current()
		return err
	})
	if err == nil {
		unlock, err = flock.Wait(ctx, ns.FD(), unix.LOCK_EX)
	}
	if err != nil {
		return nil, fmt.Errorf("lock of the network namespace, in place of %s: %w", t.lock, err)
	}
	return unlock, nil
}
