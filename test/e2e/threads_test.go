package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// mostThreads is more than Go's runtime mostly makes for an ADD.
const mostThreads = 16

// tasks starts the programs of the world in a control group with a limit on the number of threads.
func (w *world) tasks() (limit func(n int)) {
	w.Helper()
	var dir string
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} { // cgroup v1, v2
		at, err := os.MkdirTemp(root, "cnibox-test-")
		if err != nil {
			continue
		}
		w.Cleanup(func() {
			w.tracer = nil
			kerneltest.Until(w, "no task in "+at, func() bool { return os.Remove(at) == nil })
		})
		if _, err := os.Stat(filepath.Join(at, "pids.max")); err == nil {
			dir = at
			break
		}
	}
	if dir == "" {
		w.Skip("SKIPPED: no control group that limits the number of threads (CONFIG_CGROUP_PIDS) can be made")
	}
	return func(n int) {
		// The kernel counts tasks of an earlier program for a while after it has ended.
		kerneltest.Until(w, "no task in "+dir, func() bool {
			current, err := os.ReadFile(filepath.Join(dir, "pids.current"))
			return err != nil || strings.TrimSpace(string(current)) == "0"
		})
		err := os.WriteFile(filepath.Join(dir, "pids.max"), fmt.Append(nil, n), 0)
		if err != nil {
			w.Fatal(err)
		}
		w.tracer = []string{"/bin/sh", "-c", fmt.Sprintf(`echo $$ > %s/cgroup.procs && exec "$@"`, dir), "sh"}
	}
}

// With any limit of threads, ADD succeeds, or Go's runtime ends it at any point, as a kill does; DEL leaves nothing.
func TestKernelFewThreads(t *testing.T) {
	t.Parallel()
	for name, v := range victims {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := v.host(t)
			limit := w.tasks()
			before := w.Snapshot(c)
			for n := 2; n <= mostThreads; n++ {
				limit(n)
				a := v.add(w, c, 8080)
				w.tracer = nil
				what := fmt.Sprintf("ADD with %d threads", n)
				if strings.Contains(a.stderr, "failed to create new OS thread") {
					t.Log(what, "is ended by the runtime")
				} else {
					w.must(what, a)
				}
				w.must(what+", then DEL", v.del(w, c, 8080))
				w.Same(what+", then DEL", before, w.Snapshot(c))
			}
			w.must("ADD without a limit", v.add(w, c, 8080))
		})
	}
}

// The plugins that only use files enter no network namespace, and run nothing on a thread of its own.
func TestKernelNoThreads(t *testing.T) {
	kerneltest.Slow(t)
	for _, plugin := range []string{"host-local", "static"} {
		t.Run(plugin, func(t *testing.T) {
			w := newWorld(t)
			c := w.Container("ctr")
			for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
				u := w.measured(func() { w.must(string(verb), w.plugin(verb, plugin, goodConf(plugin), c)) })
				if u.Work[fault.Threads] > 0 || u.Work[fault.Sockets] > 0 {
					t.Errorf("%s: %v", verb, u.Work)
				}
			}
			other := w.measured(func() { w.must("ADD", w.plugin(spec.Add, "bridge", goodConf("bridge"), c)) })
			if other.Work[fault.Threads] == 0 || other.Work[fault.Sockets] == 0 {
				t.Errorf("ADD of bridge: %v", other.Work)
			}
		})
	}
}
