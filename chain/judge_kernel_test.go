package chain_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// judged returns what Judge finds, "container: state", in its order.
func judged(t *testing.T, r *chain.Runner, limit time.Duration) (found []string, all map[string]*chain.Judgement) {
	t.Helper()
	entries, _, err := r.Cache.List()
	if err != nil {
		t.Fatal(err)
	}
	all = map[string]*chain.Judgement{}
	err = r.Judge(t.Context(), entries, limit, func(j *chain.Judgement) {
		found = append(found, j.ContainerID+": "+j.State)
		all[j.ContainerID] = j
	})
	if err != nil {
		t.Error(err)
	}
	return found, all
}

// Each state has its case: a verb at work and a missing permission are no faults, and what is detached
// meanwhile is not mentioned.
func TestKernelJudge(t *testing.T) {
	w := newFixture(t, "rec")
	add := func(id, keys string) {
		t.Helper()
		l := w.parse(fmt.Sprintf(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"%s}]}`, keys))
		if _, err := w.Add(t.Context(), l, chain.RuntimeConf{ContainerID: id, IfName: "eth0", NetNS: kerneltest.NSPath(t, kerneltest.NS(t))}); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(id string) string { return filepath.Join(w.Cache.Dir, "results", "n-"+id+"-eth0") }
	add("a-busy", "")
	add("b-fault", `,"doCHECK":"fail {\"code\":102,\"msg\":\"no address\"}"`)
	add("c-later", `,"doCHECK":"fail {\"code\":11,\"msg\":\"later\"}"`)
	add("d-none", "")
	add("e-ok", "")
	add("f-gone", "")
	add("g-cut", "")
	change := func(id, old, new string) {
		t.Helper()
		b, err := os.ReadFile(entry(id))
		if err == nil && !strings.Contains(string(b), old) {
			err = errors.New("no " + old)
		}
		if err == nil {
			err = os.WriteFile(entry(id), []byte(strings.Replace(string(b), old, new, 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change("d-none", `"netns":"/`, `"netns":"","x":"/`)
	change("f-gone", `"netns":"/`, `"netns":"/nowhere/`)
	change("g-cut", "cniCacheV1", "cniboxIntentV1")
	lock, err := os.OpenFile(filepath.Join(w.Cache.Dir, "cnibox", "locks", "container-a-busy"), os.O_RDONLY, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()

	found, all := judged(t, w.Runner, time.Second)
	want := []string{"b-fault: fault", "c-later: not tested", "d-none: not tested", "e-ok: ok", "g-cut: interrupted", "a-busy: busy", "f-gone: gone"}
	if !slices.Equal(found, want) {
		t.Errorf("got %q, want %q", found, want)
	}
	undone := func(id string) bool { return all[id] != nil && all[id].Undone() }
	if !undone("a-busy") || !undone("c-later") || !undone("d-none") || undone("b-fault") || undone("e-ok") {
		t.Errorf("which are undone: %+v", all)
	}
	if all["b-fault"] != nil && spec.AsError(all["b-fault"].Err).Code != spec.CodeCheck {
		t.Errorf("fault %v", all["b-fault"].Err)
	}
	// the namespace is still mounted where it was
	if gone := all["f-gone"]; gone != nil && (gone.Holder == "" || !strings.Contains(gone.Why, "its namespace is mounted at "+gone.Holder)) {
		t.Errorf("gone: %q, at %q", gone.Why, gone.Holder)
	}

	lock.Close()
	if found, _ := judged(t, w.Runner, time.Second); !slices.Contains(found, "a-busy: ok") {
		t.Errorf("without the lock: %q", found)
	}
	entries, _, _ := w.Cache.List()
	for _, e := range entries {
		if err := os.Remove(e.File()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Judge(t.Context(), entries, time.Second, func(j *chain.Judgement) {
		if j.State != chain.StateOK {
			t.Errorf("%s was detached, and is %s: %v %s", j.ContainerID, j.State, j.Err, j.Why)
		}
	}); err != nil {
		t.Error(err)
	}
}

// An external plugin that does not answer holds up one attachment, not all that have it.
func TestKernelJudgeHangs(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec","doCHECK":"sleep"}]}`)
	for _, id := range []string{"a", "a2", "b"} { // those of one container are judged one after another
		target := chain.RuntimeConf{ContainerID: id[:1], IfName: "eth" + id[1:] + "0", NetNS: kerneltest.NSPath(t, kerneltest.NS(t))}
		if _, err := w.Add(t.Context(), l, target); err != nil {
			t.Fatal(err)
		}
	}
	w.records()
	entries, _, err := w.Cache.List()
	if err != nil {
		t.Fatal(err)
	}
	hung := 0
	err = w.Judge(t.Context(), entries, 50*time.Millisecond, func(j *chain.Judgement) {
		if j.State != chain.StateNotTested || !j.Undone() {
			t.Errorf("%s is %s", j.Title(), j.State)
		}
		if strings.Contains(j.Why, "has not answered for another attachment") {
			hung++
		}
	})
	if err != nil || hung == 0 {
		t.Errorf("%d of %d were left out, %v", hung, len(entries), err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Judge(ctx, entries, time.Second, func(j *chain.Judgement) { t.Errorf("%s is judged", j.Title()) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
