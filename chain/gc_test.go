package chain_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cnibox/chain"
	"cnibox/internal/fault"
	"cnibox/spec"
)

// gcList is a network whose plugin is told of GC.
const gcList = `{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"rec"}]}`

// told returns the valid attachments that the plugin got in its last GC.
func (w *world) told() string {
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

// TestGCMeetsAdd has an ADD end between the begin of a GC and its lock: what it
// has attached is alive.
func TestGCMeetsAdd(t *testing.T) {
	w := newWorld(t, "rec")
	l := w.parse(gcList)
	fault.Hook = func(what string) error {
		if what == "lock network n" {
			fault.Hook = nil
			_, err := w.Add(t.Context(), l, target("late"))
			return err
		}
		return nil
	}
	stale, err := w.GC(t.Context(), l, chain.Sweep{Live: true})
	fault.Hook = nil
	if err != nil || len(stale) != 0 {
		t.Errorf("deleted %v, %v", stale, err)
	}
	if got := w.told(); got != `[{"containerID":"late","ifname":"eth0"}]` {
		t.Errorf("valid: %s", got)
	}
	if got := strings.Join(w.entries(), " "); got != "n-late-eth0" {
		t.Errorf("the cache has %q", got)
	}
}

// TestGCKeepsUnreadable spoils the entry of a live attachment in every way: a GC that
// keeps what is alive tells the plugins that it is valid, each time, until its DEL.
func TestGCKeepsUnreadable(t *testing.T) {
	const valid = `[{"containerID":"c","ifname":"eth0"}]`
	age := func(file string) error { return os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)) }
	tests := map[string]struct {
		id, valid string
		spoil     func(file string) error
		aside     bool
	}{
		"young": {"c", valid, func(f string) error { return os.Truncate(f, 10) }, false},
		"old":   {"c", valid, func(f string) error { return errors.Join(os.Truncate(f, 10), age(f)) }, true},
		"link":  {"c", valid, func(f string) error { return errors.Join(os.Remove(f), os.Symlink("/etc/passwd", f)) }, false},
		"of another": {"c", valid, func(f string) error {
			return os.WriteFile(f, []byte(strings.Replace(libcniEntry(""), `"containerId":"c"`, `"containerId":"d"`, 1)), 0o600)
		}, false},
		"dashes": {"a-b", `[{"containerID":"a","ifname":"b-eth0"},{"containerID":"a-b","ifname":"eth0"}]`,
			func(f string) error { return os.Truncate(f, 0) }, false},
		"second name": {"c", valid, func(f string) error {
			a := spec.Attachment{Network: "n", ContainerID: "c", IfName: "eth0"}
			return errors.Join(os.Truncate(f, 0), os.Rename(f, f+"~"+a.Key()))
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "rec")
			l := w.parse(gcList)
			if _, err := w.Add(t.Context(), l, target(tt.id)); err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(filepath.Join(w.Cache.Dir, "results", "n-"+tt.id+"-eth0")); err != nil {
				t.Fatal(err)
			}
			w.records()
			if _, err := w.GC(t.Context(), l, chain.Sweep{Live: true, DryRun: true}); err != nil {
				t.Error(err)
			}
			w.wantWarning("n/"+tt.id+"/eth0", "would be set aside", tt.aside)
			for range 2 {
				if _, err := w.GC(t.Context(), l, chain.Sweep{Live: true}); err != nil {
					t.Error(err)
				}
				w.wantWarning("n/"+tt.id+"/eth0", "would be", false)
				if got := w.told(); got != tt.valid {
					t.Errorf("valid: got %s, want %s", got, tt.valid)
				}
			}
			if _, err := w.GC(t.Context(), l, chain.Sweep{}); err != nil {
				t.Error(err)
			}
			if got := w.told(); got != "[]" {
				t.Errorf("valid to a GC of all: %s", got)
			}
			if err := w.Del(t.Context(), l, target(tt.id)); err != nil {
				t.Error(err)
			}
			left, _ := filepath.Glob(filepath.Join(w.Cache.Dir, "broken", "*", "*"))
			if names := append(w.entries(), left...); len(names) > 0 {
				t.Errorf("DEL leaves %q", names)
			}
		})
	}
}

// wantWarning wants one warning since the last time, about an attachment that is kept.
func (w *world) wantWarning(attachment, more string, with bool) {
	w.Helper()
	got := strings.Join(w.warned, "\n")
	if len(w.warned) != 1 || !strings.Contains(got, attachment) || !strings.Contains(got, "is kept") || strings.Contains(got, more) != with {
		w.Errorf("warned %q, want one that %s is kept, with %q: %t", got, attachment, more, with)
	}
	w.warned = nil
}

// TestSetAside: what was moved out of the way goes with the next ADD of its
// attachment, and with the next boot.
func TestSetAside(t *testing.T) {
	w := newWorld(t, "rec")
	l := w.parse(gcList)
	results := filepath.Join(w.Cache.Dir, "results")
	os.MkdirAll(results, 0o700)
	for _, name := range []string{"n-c-eth0", "n-gone-eth0"} {
		os.WriteFile(filepath.Join(results, name), nil, 0o600)
		os.Chtimes(filepath.Join(results, name), time.Unix(1, 0), time.Unix(1, 0))
	}
	older := filepath.Join(w.Cache.Dir, "broken", "boot before")
	os.MkdirAll(older, 0o700)
	os.WriteFile(filepath.Join(older, "n-x-eth0"), nil, 0o600)
	precious := w.write("precious/file", "")
	link := filepath.Join(w.Cache.Dir, "broken", "link")
	if err := os.Symlink(filepath.Dir(precious), link); err != nil {
		t.Fatal(err)
	}
	if _, err := w.GC(t.Context(), l, chain.Sweep{Live: true}); err != nil {
		t.Fatal(err)
	}
	if got := w.told(); got != `[{"containerID":"c","ifname":"eth0"},{"containerID":"gone","ifname":"eth0"}]` {
		t.Errorf("valid: %s", got)
	}
	if _, err := w.Add(t.Context(), l, target("c")); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(w.Cache.Dir, "broken", "*", "*"))
	if len(left) != 1 || filepath.Base(left[0]) != "n-gone-eth0" {
		t.Errorf("set aside: %q", left)
	}
	for _, path := range []string{older, link} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s, of an earlier boot: %v", path, err)
		}
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("what a link leads to: %v", err)
	}
}

// TestGCOfHashedName has an entry whose name is a hash: nobody can tell what it was about,
// so nothing is deleted.
func TestGCOfHashedName(t *testing.T) {
	w := newWorld(t, "rec")
	name := strings.Repeat("y", 200)
	l := w.parse(strings.Replace(gcList, `"n"`, `"`+name+`"`, 1))
	if _, err := w.Add(t.Context(), l, target(strings.Repeat("c", 60))); err != nil {
		t.Fatal(err)
	}
	os.Truncate(filepath.Join(w.Cache.Dir, "results", w.entries()[0]), 0)
	w.records()
	for _, dry := range []bool{true, false} {
		_, err := w.GC(t.Context(), l, chain.Sweep{Live: true, DryRun: dry})
		wantErr(t, err, "does not tell whose it was")
	}
	w.wantCalls("")
	if _, err := w.GC(t.Context(), l, chain.Sweep{}); err != nil {
		t.Error(err)
	}
}
