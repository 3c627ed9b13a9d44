package e2e

import (
	"fmt"
	"strings"
	"testing"

	"cnibox/spec"
	"cnibox/test/product"
)

// mostDescriptors is a limit with which every ADD succeeds.
const mostDescriptors = 64

// limited has the programs started with a limit of open files, RLIMIT_NOFILE; 0: with that
// of the test.
func (w *world) limited(files int) {
	w.tracer = nil
	if files > 0 {
		w.tracer = []string{"/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, files), "sh"}
	}
}

// TestKernelFewDescriptors does ADD with each limit of open files, from one that the process
// itself exceeds to one that is enough, with delegates and members of a list built in and
// started: ADD answers with one JSON document, and one that fails leaves all as it was.
func TestKernelFewDescriptors(t *testing.T) {
	t.Parallel()
	for name, v := range victims {
		for how, env := range map[string][]string{"built in": nil, "started": {product.ForceExec + "=1"}} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				w, c := v.host(t)
				before := w.Snapshot(c)
				refused, done := 0, 0
				for files := 3; files <= mostDescriptors; files++ {
					w.limited(files)
					a := v.add(w, c, 8080, env...)
					w.limited(0)
					what := fmt.Sprintf("ADD with %d descriptors", files)
					if a.code(t) != 0 {
						refused++
						w.Same(what, before, w.Snapshot(c))
						continue
					}
					if done++; done == 3 {
						break
					}
					w.must(what+", then DEL", v.del(w, c, 8080))
					w.Same(what+", then DEL", before, w.Snapshot(c))
				}
				if refused == 0 || done != 3 {
					t.Errorf("%d refused, %d done", refused, done)
				}
			})
		}
	}
}

// TestKernelEnoughDescriptors looks for the lowest limit of open files that each plugin's ADD
// takes for enough: then it is.
func TestKernelEnoughDescriptors(t *testing.T) {
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		t.Parallel()
		w, _ := f.host(t, plugin, false)
		for _, env := range [][]string{nil, {product.ForceExec + "=1"}} {
			a := w.chain(plugin, f.enter(w, w.Container("ctr")), w.inProcess)
			for i := range a.last() {
				a.must(spec.Add, i)
			}
			a.call = w.plugin
			refused := 0
			for files := 3; ; files++ {
				w.limited(files)
				got := a.do(spec.Add, a.last(), env...)
				w.limited(0)
				if code := got.code(t); code == spec.CodeIO && strings.Contains(got.stdout, "file descriptors") && files < mostDescriptors {
					refused++
					continue
				}
				w.must(fmt.Sprintf("ADD with %d descriptors", files), got)
				break
			}
			if refused == 0 {
				t.Error("no ADD was refused: there is nothing to test")
			}
			a.del()
		}
	})
}
