package e2e

import (
	"fmt"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// TestKernelEveryKilled kills ADD and then DEL of each plugin before each of their changes: the
// next DEL restores the state from before, and the next ADD succeeds. TestKernelKilled has bridge,
// and a whole list by cni-exec.
func TestKernelEveryKilled(t *testing.T) {
	kerneltest.OneKernel(t)
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

// killed makes an attachment, kills a verb of its last step at its nth change, and deletes the
// attachment. It returns false if there are fewer changes.
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
