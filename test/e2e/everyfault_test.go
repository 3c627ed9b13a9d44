package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/fault"
	"cnibox/spec"
)

// TestKernelEveryRollback makes the nth call of ADD that changes something fail, for
// every n: each ADD that fails leaves all as it was. Interface plugins have more of that,
// on hosts of more kinds, in TestKernelRollback.
func TestKernelEveryRollback(t *testing.T) {
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		w, _ := f.host(t, plugin, false)
		c := f.enter(w, w.Container("ctr"))
		a := w.chain(plugin, c, w.inProcess)
		for i := range a.last() {
			a.must(spec.Add, i)
		}
		n := 1
		for f.failing(a, n) {
			n++
		}
		if n == 1 && !f.Idle {
			t.Error("ADD changes nothing: there is nothing to test")
		}
		t.Logf("%d calls", n-1)
		a.must(spec.Del, a.last())
	})
}

// failing makes the nth change of the last step's ADD fail; false: there are not so many.
func (f fixture) failing(a *attached, nth int) bool {
	w, calls, failed := a.w, 0, ""
	before := w.Snapshot(a.c)
	fault.Hook = func(what string) error {
		if calls++; calls != nth {
			return nil
		}
		failed = what
		return errors.New("made to fail")
	}
	answer := a.do(spec.Add, a.last())
	fault.Hook = nil
	what := fmt.Sprintf("ADD whose call %d, %q, fails", nth, failed)
	switch {
	case failed == "":
		w.must("ADD", answer)
		return false
	case answer.exit != 0:
		if code := answer.code(w.T); code == 0 || strings.Contains(answer.stdout, "undo") {
			w.Errorf("%s answers %s", what, answer.stdout)
		}
		w.Same(what, before, w.Snapshot(a.c))
	default:
		if !needless(failed) {
			w.Errorf("%s: it succeeds all the same", what)
		}
		a.must(spec.Del, a.last())
	}
	return true
}

// needless reports whether an ADD can do without a change: neighbours find out by themselves,
// what the lease store keeps about itself is made by the next verb, and packets then wait in
// one queue for all.
func needless(what string) bool {
	return strings.HasPrefix(what, "link set") && strings.Contains(what, " address ") || strings.Contains(what, "ndisc_notify") ||
		strings.HasSuffix(what, "fq_codel") || slices.Contains([]string{"ipam: write", "ipam: mkdir", "ipam: rename", "ipam: symlink"}, what)
}

// TestKernelEveryKilled kills ADD and then DEL of each plugin at each change that they
// are about to make: the next DEL leaves all as it was before, and the next ADD succeeds.
// bridge, and a whole list by cni-exec, are in TestKernelKilled.
func TestKernelEveryKilled(t *testing.T) {
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		if plugin == "bridge" {
			return
		}
		t.Parallel()
		w, _ := f.host(t, plugin, false)
		c := f.enter(w, w.Container("ctr"))
		before := w.Snapshot(c)
		kills := map[spec.Verb]int{}
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			for n := 1; ; n++ {
				what := fmt.Sprintf("%s killed at change %d, then DEL", verb, n)
				if !w.killed(plugin, c, verb, n, what) {
					break
				}
				w.Same(what, before, w.Snapshot(c))
				kills[verb]++
			}
		}
		t.Logf("killed %v", kills)
		if kills[spec.Add] == 0 && !f.Idle {
			t.Error("no ADD was killed: there is nothing to test")
		}
	})
}

// killed makes an attachment, kills a verb of its last step at a change, and releases
// all; false: there are not so many changes.
func (w *world) killed(plugin string, c applettest.Container, verb spec.Verb, n int, what string) bool {
	w.Helper()
	a := w.chain(plugin, c, w.inProcess)
	for i := range a.last() {
		a.must(spec.Add, i)
	}
	if verb == spec.Del {
		a.must(spec.Add, a.last())
	}
	a.call = w.plugin
	answer := a.do(verb, a.last(), fmt.Sprintf("%s=%d", killAt, n))
	a.call = w.inProcess
	if answer.exit != -1 && answer.exit != 0 {
		w.Fatalf("%s: exit code %d: %s%s", what, answer.exit, answer.stdout, answer.stderr)
	}
	if verb == spec.Add && answer.exit == 0 {
		a.prev = answer.stdout
	}
	a.del()
	if verb == spec.Add {
		a.call = w.inProcess
		for i := range a.steps {
			a.must(spec.Add, i)
		}
		a.del()
	}
	return answer.exit == -1
}
