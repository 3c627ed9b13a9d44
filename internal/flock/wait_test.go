package flock

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// held calls test while another process has each lock, until it calls release. The clock is fake.
func held(t *testing.T, test func(t *testing.T, path string, release func())) {
	t.Helper()
	path, was := filepath.Join(t.TempDir(), "lock"), flock
	defer func() { flock = was }() // all goroutines have ended
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		flock = func(_, how int) error {
			if how&unix.LOCK_NB != 0 {
				return unix.EWOULDBLOCK
			}
			<-free
			return nil
		}
		test(t, path, func() { close(free) })
	})
}

// Exclusive and Wait wait for Timeout and no longer, Lock as long as the context lasts.
func TestWaits(t *testing.T) {
	exclusive := func(ctx context.Context, path string) error { _, err := Exclusive(ctx, path, 0o600); return err }
	lock := func(ctx context.Context, path string) error {
		_, err := Lock(ctx, path, 0o600, unix.LOCK_SH)
		return err
	}
	waits := func(ctx context.Context, path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CREAT, 0o600)
		if err == nil {
			_, err = Wait(ctx, fd, unix.LOCK_EX)
		}
		return err
	}
	for name, tt := range map[string]struct {
		take    func(ctx context.Context, path string) error
		free    time.Duration // when the holder releases it
		context time.Duration // when the context ends
		want    time.Duration
		err     error
	}{
		"Exclusive, free":     {exclusive, 29 * time.Second, time.Hour, 29 * time.Second, nil},
		"Exclusive, held":     {exclusive, time.Minute, time.Hour, 30 * time.Second, context.DeadlineExceeded},
		"Exclusive, canceled": {exclusive, time.Minute, time.Second, time.Second, context.Canceled},
		"Wait, held":          {waits, time.Minute, time.Hour, 30 * time.Second, context.DeadlineExceeded},
		"Wait, canceled":      {waits, time.Minute, time.Second, time.Second, context.Canceled},
		"Lock, free":          {lock, 59 * time.Minute, time.Hour, 59 * time.Minute, nil},
		"Lock, canceled":      {lock, 2 * time.Hour, time.Hour, time.Hour, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			held(t, func(t *testing.T, path string, release func()) {
				begin := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(tt.context, cancel)
				time.AfterFunc(tt.free, release)
				err := tt.take(ctx, path)
				if took := time.Since(begin); took != tt.want || !errors.Is(err, tt.err) {
					t.Errorf("after %s: %v; want %v after %s", took, err, tt.err, tt.want)
				}
				time.Sleep(3 * time.Hour) // the lock that arrives late is released, and its goroutine ends
			})
		})
	}
}
