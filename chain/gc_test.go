package chain_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// gcList is a network with a version that has GC.
const gcList = `{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"rec"}]}`

// validSet returns the valid attachments in the last GC of the plugin.
func (w *fixture) validSet() string {
	w.Helper()
	all, text := w.records()
	for _, r := range all {
		if r.Command == "GC" {
			return member(w.T, r.Stdin, "cni.dev/valid-attachments")
		}
	}
	w.Errorf("no GC among %q", text)
	return ""
}

// An attachment is valid if its ADD ran while GC waited for the network's lock.
func TestGCDuringAdd(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(gcList)
	file := filepath.Join(w.Cache.Dir, "cnibox", "locks", "network-n")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := flock.Lock(t.Context(), file, 0o600, unix.LOCK_SH) // as during another ADD
	if err != nil {
		t.Fatal(err)
	}
	var stale []spec.Attachment
	done := make(chan struct{})
	go func() {
		defer close(done)
		stale, err = w.GC(t.Context(), l, chain.GCOptions{Live: true})
	}()
	kerneltest.Until(w, "a GC that waits for the lock", func() bool { return lockContended(t, file) })
	if _, err := w.Add(t.Context(), l, target("late")); err != nil {
		t.Error(err)
	}
	unlock()
	<-done
	if err != nil || len(stale) != 0 {
		t.Errorf("deleted %v, %v", stale, err)
	}
	if got := w.validSet(); got != `[{"containerID":"late","ifname":"eth0"}]` {
		t.Errorf("valid: %s", got)
	}
	if got := strings.Join(w.entries(), " "); got != "n-late-eth0" {
		t.Errorf("the cache has %q", got)
	}
}

// lockContended reports whether a process waits for the lock of a file: proc_locks(5).
func lockContended(t *testing.T, file string) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", st.Ino)) {
			return true
		}
	}
	return false
}

// GC with Live keeps an attachment whose entry cannot be read, each time, until DEL.
func TestGCKeepsUnreadable(t *testing.T) {
	age := func(file string) error { return os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)) }
	tests := map[string]struct {
		id    string
		spoil func(file string) error
	}{
		"young": {"c", func(f string) error { return os.Truncate(f, 10) }},
		"old":   {"c", func(f string) error { return errors.Join(os.Truncate(f, 10), age(f)) }},
		"link":  {"c", func(f string) error { return errors.Join(os.Remove(f), os.Symlink("/etc/passwd", f)) }},
		"of another": {"c", func(f string) error {
			return os.WriteFile(f, []byte(strings.Replace(libcniEntry(""), `"containerId":"c"`, `"containerId":"d"`, 1)), 0o600)
		}},
		"dashes": {"a-b", func(f string) error { return errors.Join(os.Truncate(f, 0), age(f)) }},
		"name with the key": {"c", func(f string) error {
			a := spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}
			return errors.Join(os.Truncate(f, 0), os.Rename(f, f+"~"+a.Key()))
		}},
		"long name": {strings.Repeat("c", 250), func(f string) error { return os.Truncate(f, 0) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec")
			l := w.parse(gcList)
			if _, err := w.Add(t.Context(), l, target(tt.id)); err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(filepath.Join(w.Cache.Dir, "results", w.entries()[0])); err != nil {
				t.Fatal(err)
			}
			file := w.entries()[0]
			w.records()
			if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true, DryRun: true}); err != nil {
				t.Error(err)
			}
			w.wantWarning(file)
			for range 2 {
				if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true}); err != nil {
					t.Error(err)
				}
				w.wantWarning(file)
				w.wantCalls("")
			}
			if got := strings.Join(w.entries(), " "); got != file {
				t.Errorf("the cache has %q, want %q", got, file)
			}
			if _, err := w.GC(t.Context(), l, chain.GCOptions{}); err != nil {
				t.Error(err)
			}
			if got := w.validSet(); got != "[]" {
				t.Errorf("valid to a GC of all: %s", got)
			}
			if err := w.Del(t.Context(), l, target(tt.id)); err != nil {
				t.Error(err)
			}
			if names := w.entries(); len(names) > 0 {
				t.Errorf("DEL leaves %q", names)
			}
		})
	}
}

// wantWarning requires one new warning, that the attachment of a file is kept.
func (w *fixture) wantWarning(file string) {
	w.Helper()
	got := strings.Join(w.warned, "\n")
	if len(w.warned) != 1 || !strings.Contains(got, file) || !strings.Contains(got, "is kept") {
		w.Errorf("warned %q, want one that the attachment of %s is kept", got, file)
	}
	w.warned = nil
}

// GC keeps broken entries of any network, with a warning each time, until the next ADD of the
// attachment. Those of its own network prevent GC of the plugins, but not the deletion of readable
// stale entries.
func TestGCKeepsBroken(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(gcList)
	results := filepath.Join(w.Cache.Dir, "results")
	os.MkdirAll(results, 0o700)
	for _, name := range []string{"n-c-eth0", "n-gone-eth0", "m-x-eth0"} {
		os.WriteFile(filepath.Join(results, name), nil, 0o600)
		os.Chtimes(filepath.Join(results, name), time.Unix(1, 0), time.Unix(1, 0))
	}
	dead := strings.NewReplacer(`"containerId":"c"`, `"containerId":"dead"`, ownNS, "/proc/0/ns/net").Replace(libcniEntry(""))
	os.WriteFile(filepath.Join(results, "n-dead-eth0"), []byte(dead), 0o600)
	gc := func() {
		t.Helper()
		w.warned = nil
		if _, err := w.GC(t.Context(), l, chain.GCOptions{Live: true}); err != nil {
			t.Fatal(err)
		}
	}
	gc()
	w.wantCalls("DEL rec")
	if len(w.warned) != 4 { // one is that the cached configuration differs
		t.Errorf("warned %q", w.warned)
	}
	gc()
	if len(w.warned) != 3 {
		t.Errorf("the second time: warned %q", w.warned)
	}
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(w.entries(), " "); got != "m-x-eth0 n-c-eth0 n-gone-eth0" {
		t.Errorf("after an ADD the cache has %q", got)
	}
	os.Remove(filepath.Join(results, "n-gone-eth0"))
	w.records()
	gc()
	if got := w.validSet(); got != `[{"containerID":"c","ifname":"eth0"}]` || len(w.warned) != 1 || !strings.Contains(w.warned[0], "m-x-eth0") || strings.Contains(w.warned[0], "is kept") {
		t.Errorf("valid: %s; warned %q, want that of the other network", got, w.warned)
	}
}
