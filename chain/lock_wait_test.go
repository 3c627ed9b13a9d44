package chain_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// A verb returns code 11 if the lock of its container or network is not released in time.
func TestLockTimeout(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"sleep"}]}`)
	w.Cache.LockTimeout = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Add(ctx, l, target("c")) }()
	kerneltest.Until(w, "an ADD that has the lock", func() bool { return len(w.entries()) > 0 })
	for verb, do := range map[string]func(context.Context) error{
		"another verb runs for container c": func(ctx context.Context) error { return w.Del(ctx, l, target("c")) },
		"network n is in use":               func(ctx context.Context) error { _, err := w.GC(ctx, l, chain.GCOptions{}); return err },
	} {
		err := do(t.Context())
		wantErr(t, err, verb)
		if spec.AsError(err).Code != spec.CodeTryAgain {
			t.Errorf("got code %d, %v", spec.AsError(err).Code, err)
		}
	}
	cancel()
	<-done
}

// The lock file of a container exists while it has an attachment, also with a container ID of the
// maximal length.
func TestLockFiles(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(cachedList)
	wantFiles := func(when string, want ...string) {
		t.Helper()
		left, _ := filepath.Glob(filepath.Join(w.Cache.Dir, "cnibox", "locks", "*"))
		for i := range left {
			left[i] = filepath.Base(left[i])
		}
		if !slices.Equal(left, append(want, "network-n")) {
			t.Errorf("%s: lock files %q", when, left)
		}
	}
	for _, id := range []string{"c", strings.Repeat("x", 255)} {
		add := func(l *chain.List) error { _, err := w.Add(t.Context(), l, target(id)); return err }
		if err := add(l); err != nil {
			t.Fatal(err)
		}
		wantFiles("ADD", ("container-" + id)[:min(len(id)+10, 255)])
		if err := w.Del(t.Context(), l, target(id)); err != nil {
			t.Error(err)
		}
		wantFiles("DEL")
		if add(w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"exit 1"}]}`)) == nil {
			t.Error("ADD succeeds")
		}
		wantFiles("ADD that failed")
		if err := add(l); err != nil {
			t.Fatal(err)
		}
		if _, err := w.GC(t.Context(), l, chain.GCOptions{}); err != nil {
			t.Error(err)
		}
		wantFiles("GC")
	}
}

// ADD that deletes a stale attachment of the container keeps the lock.
func TestLockKeptAfterStale(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(cachedList)
	w.Invoker = killedInvoker{}
	func() {
		defer func() { _ = recover() }()
		w.Add(t.Context(), l, target("c"))
	}()
	w.Invoker = w.local
	sleeps := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doADD":"sleep"}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Add(ctx, sleeps, target("c")) }()
	kerneltest.Until(w, "the DEL of the old one and the ADD", func() bool {
		b, _ := os.ReadFile(w.recordFile())
		return strings.Contains(string(b), `"ADD"`)
	})
	w.Cache.LockTimeout = 50 * time.Millisecond
	wantErr(t, w.Del(t.Context(), l, target("c")), "another verb runs for container c")
	cancel()
	<-done
}
