package chain_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cnibox/chain"
	"cnibox/spec"
)

// A verb whose container, or network, another one has for too long ends with code 11.
func TestLockTimeout(t *testing.T) {
	w := newWorld(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"sleep"}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Add(ctx, l, target("c")) }()
	w.until("an ADD that has the lock", func() bool { return len(w.entries()) > 0 })
	w.Cache.LockTimeout = 50 * time.Millisecond
	for verb, do := range map[string]func(context.Context) error{
		"another verb runs for container c": func(ctx context.Context) error { return w.Del(ctx, l, target("c")) },
		"network n is in use":               func(ctx context.Context) error { _, err := w.GC(ctx, l, chain.GCOptions{}); return err },
	} {
		long, stop := context.WithTimeout(t.Context(), 10*time.Second)
		err := do(long)
		wantErr(t, err, verb)
		if long.Err() != nil || spec.AsError(err).Code != spec.CodeTryAgain {
			t.Errorf("got code %d, %v; %v", spec.AsError(err).Code, err, long.Err())
		}
		stop()
	}
	cancel()
	<-done
}

// Lock files of containers do not pile up, also where the name is as long as a file's may be.
func TestLockFiles(t *testing.T) {
	w := newWorld(t, "rec")
	l := w.parse(cachedList)
	for _, id := range []string{"c", strings.Repeat("x", 255)} {
		if _, err := w.Add(t.Context(), l, target(id)); err != nil {
			t.Fatal(err)
		}
		if err := w.Del(t.Context(), l, target(id)); err != nil {
			t.Error(err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(w.Cache.Dir, "cnibox", "locks", "*"))
	if len(left) != 1 || filepath.Base(left[0]) != "network-n" {
		t.Errorf("lock files: %q", left)
	}
}
