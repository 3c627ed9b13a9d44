package flock_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cnibox/internal/flock"
)

// A lock that is not released is waited for until the timeout, even if the context has none. The
// lock can be taken when it is released.
func TestTimeoutWithoutDeadline(t *testing.T) {
	flock.Timeout = 20 * time.Millisecond
	t.Cleanup(func() { flock.Timeout = 30 * time.Second })
	path := filepath.Join(t.TempDir(), "lock")
	unlock := mustLock(t, path)
	got := make(chan error, 1)
	go func() {
		_, err := flock.Exclusive(context.Background(), path, 0o600)
		got <- err
	}()
	select {
	case err := <-got:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits on")
	}
	unlock()
	flock.Timeout = 10 * time.Second
	mustLock(t, path)()
}
