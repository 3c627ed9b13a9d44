package main

import (
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/proctree"
)

// newRunner returns a runner with a directory of its own, whose output is in out.
// theTree is the one of this process: another would reap the children of this one.
var theTree = sync.OnceValues(proctree.New)

func newRunner(t *testing.T, out io.Writer) *runner {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := theTree()
	if err != nil {
		t.Fatal(err)
	}
	saved := pauses
	pauses = []time.Duration{0, 0}
	t.Cleanup(func() { pauses = saved })
	return &runner{tree: tree, out: out, killed: make(chan os.Signal, 1)}
}

func shell(name, script string) step {
	return step{name: name, limit: time.Minute, argv: []string{"sh", "-c", script}}
}

// The summary repeats what failed and counts skips; the names of what failed are returned.
func TestSummary(t *testing.T) {
	var out strings.Builder
	r := newRunner(t, &out)
	for _, s := range []step{
		shell("one", "echo 'SKIPPED: no card'; echo '    a_test.go:1: SKIPPED: no card'; echo 'SKIPPED: no qemu (3 times)'"),
		shell("two", "echo '--- FAIL: p TestA'; echo '| it is 3'; echo quiet; exit 4"),
	} {
		res, err := r.run(s)
		if err != nil {
			t.Fatal(err)
		}
		r.results = append(r.results, res)
	}
	begin := out.Len()
	if failed := r.summary(0); failed != "two" {
		t.Errorf("failed: %q, want two", failed)
	}
	want := `
-- summary --
FAIL: two: exit status 4: bin/ci/two.log
--- FAIL: p TestA
| it is 3
SKIPPED: no card (2 times)
SKIPPED: no qemu (3 times)
ok          0 s  one, 5 skipped
FAIL        0 s  two
all         0 s
`
	if got := out.String()[begin:]; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if text, err := os.ReadFile(logs + "/two.log"); err != nil || string(text) != "--- FAIL: p TestA\n| it is 3\nquiet\n" {
		t.Errorf("the log is %q, %v", text, err)
	}
}

// What is fetched is tried again, and ends the run if it does not come.
func TestFetch(t *testing.T) {
	r := newRunner(t, io.Discard)
	s := shell("get", "echo x >>tries; [ $(wc -l <tries) -eq 3 ]")
	s.fetch = true
	if res, err := r.run(s); err != nil || res.word != "ok" {
		t.Errorf("the third try: %v, %v", res, err)
	}
	s.argv[2] = "echo x >>never; false"
	if _, err := r.run(s); err == nil || !strings.Contains(err.Error(), "get cannot be fetched") {
		t.Errorf("error %v", err)
	}
	if text, _ := os.ReadFile("never"); len(text) != len("x\n")*3 {
		t.Errorf("tries: %q, want three", text)
	}
}

// Past its limit a step is ended with its children, also those in another session.
func TestLimit(t *testing.T) {
	r := newRunner(t, io.Discard)
	s := shell("hangs", "setsid sleep 1000 & sleep 1000")
	s.limit = time.Millisecond
	res, err := r.run(s)
	if err != nil || res.word != "FAIL" || res.why != "not done within 1ms" {
		t.Errorf("result %+v, %v", res, err)
	}
	if left := r.tree.Kill(0); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// A signal ends the step and the run. A process or a mount of a step that has passed is not left.
func TestInterrupted(t *testing.T) {
	r := newRunner(t, io.Discard)
	before, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.run(shell("leaves", "mkdir m; mount -t tmpfs none m; setsid sleep 1000 & exit 0"))
	if err != nil || res.word != "ok" {
		t.Errorf("result %+v, %v", res, err)
	}
	r.killed <- unix.SIGTERM
	if _, err = r.run(shell("interrupted", "sleep 1000")); err == nil || !strings.Contains(err.Error(), "interrupted: terminated") {
		t.Errorf("error %v", err)
	}
	if left := r.tree.Kill(0); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	after, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for mount := range strings.Lines(string(after)) {
		if !strings.Contains(string(before), mount) {
			t.Errorf("left: the mount %s", mount)
		}
	}
}

// A step that has passed is known to a later run of the same commit; one that failed since is not.
func TestRecord(t *testing.T) {
	path := t.TempDir() + "/COMMIT"
	r := &record{path: path}
	for _, res := range []result{
		{name: "a", word: "ok", took: 90 * time.Second, skipped: 2}, {name: "b", word: "FAIL"}, {name: "c", word: "ok"}, {name: "c", word: "FAIL"},
	} {
		if err := r.add(res); err != nil {
			t.Fatal(err)
		}
	}
	results, err := readRecord(path)
	if err != nil || len(results) != 1 {
		t.Errorf("%v, %v, want a alone", results, err)
	}
	if got := results["a"]; got.word != "earlier" || got.took != 90*time.Second || got.skipped != 2 {
		t.Errorf("a is %+v", got)
	}
}

// Steps have names of their own, which are those of their logs.
func TestLanes(t *testing.T) {
	for name, l := range lanes {
		seen := map[string]bool{}
		for _, s := range l.steps {
			if seen[s.name] || strings.ContainsAny(s.name, "/ ") || s.limit == 0 {
				t.Errorf("%s: step %q", name, s.name)
			}
			seen[s.name] = true
		}
	}
	steps, named, err := lanes["long"].choose([]string{"soak", "build-all"})
	if err != nil || !named || len(steps) != 2 || steps[0].name != "build-all" {
		t.Errorf("%v, %t, %v", steps, named, err)
	}
	if _, _, err := lanes["gate"].choose([]string{"no"}); err == nil || !strings.Contains(err.Error(), "soak") {
		t.Errorf("error %v", err)
	}
}
