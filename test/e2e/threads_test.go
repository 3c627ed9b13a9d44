package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// With a limit of mostThreads every ADD succeeds. Each lower limit is tried threadTries times: the
// Go runtime does not always need its threads at the same moment.
const (
	mostThreads = 16
	threadTries = 4
)

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
		err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(fmt.Sprint(n)), 0)
		if err != nil {
			w.Fatal(err)
		}
		w.tracer = []string{"/bin/sh", "-c", fmt.Sprintf(`echo $$ > %s/cgroup.procs && exec "$@"`, dir), "sh"}
	}
}

// With too low a limit of threads, ADD refuses with code 11, or the Go runtime ends it before its
// first change. A program cannot prevent the runtime from ending a process that gets no thread.
func TestKernelFewThreads(t *testing.T) {
	t.Parallel()
	for name, v := range victims {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := v.host(t)
			limit := w.tasks()
			before := w.Snapshot(c)
			ended, refused, done := 0, 0, 0
			for n := 2; n <= mostThreads; n++ {
				for range threadTries {
					limit(n)
					a := v.add(w, c, 8080)
					w.tracer = nil
					what := fmt.Sprintf("ADD with %d threads", n)
					switch {
					case a.exit == 0:
						done++
						w.must(what+", then DEL", v.del(w, c, 8080))
					case strings.Contains(a.stderr, "failed to create new OS thread"): // before or after it has refused
						ended++
					case a.code(t) == spec.CodeTryAgain && strings.Contains(a.stdout, "threads and processes"):
						refused++
					}
					w.Same(what, before, w.Snapshot(c))
					if a.exit != 0 && n == mostThreads {
						t.Errorf("%s: exit code %d: %s%s", what, a.exit, a.stdout, a.stderr)
					}
				}
			}
			if ended == 0 || refused == 0 || done == 0 {
				t.Errorf("%d ended by the runtime, %d refused, %d done: there is nothing to test", ended, refused, done)
			}
		})
	}
}

// ADD of the plugins that only use files makes no more threads than VERSION, which has only those
// of the Go runtime.
func TestKernelNoThreads(t *testing.T) {
	kerneltest.Slow(t)
	for _, plugin := range []string{"host-local", "static"} {
		t.Run(plugin, func(t *testing.T) {
			w := newWorld(t)
			conf := w.Expand(goodConf(plugin))
			// The runtime sometimes makes one more, more often on a busy machine.
			fewest := func(verb spec.Verb, times, enough int) int {
				n := 1000
				for i := 0; i < times && n > enough; i++ {
					a, _ := w.watched(conf, w.Container(fmt.Sprint(strings.ToLower(string(verb)), i)).Env(verb), w.Path("bin/"+plugin))
					w.must(string(verb), a)
					n = min(n, a.threads)
				}
				return n
			}
			version := fewest(spec.GetVersion, 12, 0)
			if add := fewest(spec.Add, 300, version); add > version {
				t.Errorf("ADD makes %d threads, VERSION %d", add, version)
			}
		})
	}
}
