package nft_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cnibox/internal/flock"
	"cnibox/internal/kerneltest"
	"cnibox/nft"
	"cnibox/spec"
)

// A lock that is held for ever is waited for until the patience of locks ends, be it a file's
// or, where that cannot be made, that of the socket's name: the error has code 11.
func TestKernelLockPatience(t *testing.T) {
	for name, path := range map[string]string{"file": filepath.Join(t.TempDir(), "lock"), "name": "/proc/none/lock"} {
		t.Run(name, func(t *testing.T) {
			table := nft.Open(kerneltest.NS(t), nft.WithLock(path))
			inside, leave := make(chan bool), make(chan bool)
			holder, waiter := make(chan error, 1), make(chan error, 1)
			go func() {
				holder <- table.Update(context.Background(), func(*nft.Tx) error { inside <- true; <-leave; return nil })
			}()
			<-inside
			flock.Timeout = 20 * time.Millisecond
			t.Cleanup(func() { flock.Timeout = 30 * time.Second })
			go func() { waiter <- table.Update(context.Background(), everything) }()
			select {
			case err := <-waiter:
				if !errors.Is(err, context.DeadlineExceeded) || spec.AsError(err).Code != spec.CodeTryAgain {
					t.Errorf("got code %d, %v", spec.AsError(err).Code, err)
				}
			case <-time.After(kerneltest.Patience(10 * time.Second)):
				t.Error("it waits on")
			}
			leave <- true
			if err := <-holder; err != nil {
				t.Error(err)
			}
		})
	}
}
