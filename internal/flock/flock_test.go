package flock_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/flock"
)

func mustLock(t *testing.T, path string) func() {
	t.Helper()
	unlock, err := flock.Exclusive(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

func TestExclusiveWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock := mustLock(t, path)
	got := make(chan error, 1)
	go func() {
		again, err := flock.Exclusive(context.Background(), path, 0o600)
		if err == nil {
			again()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("a held lock was given away: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestCancelledWaiterReleases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock := mustLock(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := flock.Exclusive(ctx, path, 0o600); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the deadline", err)
	}
	// The cancelled waiter may get the lock first, and must release it.
	unlock()
	again, err := flock.Exclusive(t.Context(), path, 0o600)
	if err != nil {
		t.Fatalf("after the cancelled waiter: %v", err)
	}
	again()
}

// If the holder deletes the lock file before it unlocks, the next one creates it again, since locks
// on two files of one path would not exclude each other.
func TestLockFileDeletedByHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock := mustLock(t, path)
	got := make(chan func(), 1)
	go func() {
		again, err := flock.Exclusive(context.Background(), path, 0o600)
		if err != nil {
			t.Error(err)
			again = func() {}
		}
		got <- again
	}()
	time.Sleep(20 * time.Millisecond)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock()
	defer (<-got)()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := flock.Exclusive(ctx, path, 0o600); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside the lock on the new file: got %v, want the deadline", err)
	}
}

func TestWaitShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CREAT, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		unlock, err := flock.Wait(t.Context(), fd, unix.LOCK_SH)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := flock.Exclusive(ctx, path, 0o600); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exclusive beside shared: got %v, want the deadline", err)
	}
}

func TestLockFileIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	odd := map[string]func(string) error{
		"link": func(p string) error { return os.Symlink(filepath.Join(dir, "target"), p) },
		"fifo": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"dir":  func(p string) error { return os.Mkdir(p, 0o700) },
		"socket": func(p string) error {
			l, err := net.Listen("unix", p)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	}
	for name, make := range odd {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if _, err := flock.Exclusive(t.Context(), path, 0o600); err == nil {
				t.Error("was locked")
			}
			if _, err := os.Lstat(filepath.Join(dir, "target")); !errors.Is(err, os.ErrNotExist) {
				t.Error("the link was followed")
			}
		})
	}
}
