package e2e

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// With a limit of mostDescriptors every ADD succeeds.
const mostDescriptors = 64

// limitFiles sets RLIMIT_NOFILE of the programs that w starts; 0 restores the test's own.
func (w *world) limitFiles(files int) {
	w.tracer = nil
	if files > 0 {
		w.tracer = []string{"/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, files), "sh"}
	}
}

// With any RLIMIT_NOFILE, ADD answers with one JSON document, and a failed ADD leaves everything as
// it was; with delegates and members of a list both built in and started.
func TestKernelFewDescriptors(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for name, v := range victims {
		for how, env := range map[string][]string{"built in": nil, "started": {product.ForceExec + "=1"}} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				w, c := v.host(t)
				before := w.Snapshot(c)
				refused, done := 0, 0
				for files := 3; files <= mostDescriptors; files++ {
					w.limitFiles(files)
					a := v.add(w, c, 8080, env...)
					w.limitFiles(0)
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

// The lowest limit that passes the check of each plugin's ADD is enough for that ADD.
func TestKernelDescriptorCheck(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		t.Parallel()
		w, _ := f.host(t, plugin, false)
		for _, env := range [][]string{nil, {product.ForceExec + "=1"}} {
			a := w.chain(plugin, f.enter(w, w.Container("ctr")), w.inProcess)
			attachEarlier := func() {
				a.call = w.inProcess
				for i := range a.last() {
					a.must(spec.Add, i)
				}
				a.call = w.plugin
			}
			attachEarlier()
			enough := sort.Search(mostDescriptors, func(files int) bool {
				w.limitFiles(max(files, 3))
				got := a.do(spec.Add, a.last(), env...)
				w.limitFiles(0)
				if got.code(t) == spec.CodeIO && strings.Contains(got.stdout, "file descriptors") {
					return false
				}
				w.must(fmt.Sprintf("ADD with %d descriptors", files), got)
				a.del()
				attachEarlier()
				return true
			})
			if enough <= 3 || enough == mostDescriptors {
				t.Errorf("%d descriptors are enough", enough)
			}
			a.del()
		}
	})
}
