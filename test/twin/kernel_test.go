package twin_test

import (
	"cmp"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/test/dhcptest"
	"cnibox/test/product"
	"cnibox/test/twin"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestMain(m *testing.M) { product.Main(m, nil) }

// reference is the plugin directory of Debian's package, version 1.1.1, which test/privileged moves.
var reference = cmp.Or(os.Getenv("CNIBOX_REFERENCE_DIR"), "/usr/lib/cni")

// newest is the directory of a newer reference, which `make test-twin` builds; empty: test the
// package.
var newest = os.Getenv("CNIBOX_TWIN_NEWEST")

// TestKernelTwin runs the reference plugins and ours on each configuration of the corpus: all
// differences must be in the list, and the report in the tree, which is about the package's
// plugins, must match. In a guest only those cases run that some kernels cannot run.
func TestKernelTwin(t *testing.T) {
	if newest == "" {
		kerneltest.Slow(t) // in a guest only against the newest reference
	}
	lab := newLab(t)
	cases := corpus(t, "testdata")
	list := differences(t, "testdata")
	report := "testdata/report.md"
	rows, err := twin.ReadReport(report)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{list: list, needed: list, rows: rows, ran: map[string]bool{}}
	if newest != "" {
		cases = append(cases, corpus(t, "testdata/newest")...)
		more := differences(t, "testdata/newest")
		l = &ledger{list: append(list, more...), needed: more, ran: map[string]bool{}}
	}
	if kerneltest.Guest() {
		cases = slices.DeleteFunc(cases, func(c twin.Case) bool {
			if len(c.Needs) == 0 {
				l.needed.NotRun(c.Name)
			}
			return len(c.Needs) == 0
		})
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			needs(t, &c)
			lab := lab
			lab.Serve = func(host *netns.NS) { dhcptest.Start4(t, host) }
			diff, said, err := lab.Run(&c)
			if err != nil {
				t.Fatal(err)
			}
			l.add(t, c.Name, diff, said)
		})
	}
	t.Cleanup(func() { // after all cases that -run selects
		l.close(t, cases)
		if !*update || l.rows == nil {
			return
		}
		if err := twin.WriteReport(report, cases, rows); err != nil {
			t.Error(err)
		}
	})
}

// corpus loads the cases of a directory.
func corpus(t *testing.T, dir string) []twin.Case {
	t.Helper()
	cases, err := twin.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// differences loads the list of a directory.
func differences(t *testing.T, dir string) twin.Differences {
	t.Helper()
	list, err := twin.LoadDifferences(filepath.Join(dir, "differences.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A ledger collects the results of cases, which run concurrently.
type ledger struct {
	sync.Mutex
	list   twin.Differences
	needed twin.Differences  // those that must occur in some case
	rows   map[string]string // of the report; nil: the report is about other plugins
	ran    map[string]bool
}

// add records the result of a case.
func (l *ledger) add(t *testing.T, name string, diff, said []string) {
	t.Helper()
	l.Lock()
	defer l.Unlock()
	l.ran[name] = true
	ids, open := l.list.Explain(name, diff)
	if len(open) > 0 {
		t.Errorf("not in the list of differences (- reference, + ours):\n%s\nwhat the plugins said:\n%s",
			strings.Join(open, "\n"), strings.Join(said, "\n"))
	}
	if l.rows == nil {
		return
	}
	row := twin.Row(name, ids)
	if row != l.rows[name] && !*update {
		t.Errorf("the report has %q, want %q", l.rows[name], row)
	}
	l.rows[name] = row
}

// close checks that each difference still occurs, except those that a case may have that did not
// run.
func (l *ledger) close(t *testing.T, cases []twin.Case) {
	t.Helper()
	for _, c := range cases {
		if !l.ran[c.Name] {
			l.needed.NotRun(c.Name)
		}
	}
	for _, u := range l.needed.Unused() {
		t.Errorf("no case needs this difference any more: %s", u)
	}
}

// newLab makes a directory with a link for each applet. Without the reference
// plugins the test is skipped, or fails if CNIBOX_REFERENCE=require.
func newLab(t *testing.T) twin.Lab {
	t.Helper()
	kerneltest.NS(t) // skips without the privilege
	dir := cmp.Or(newest, reference)
	if _, err := os.Stat(filepath.Join(dir, "bridge")); err != nil {
		if os.Getenv("CNIBOX_REFERENCE") == "require" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: containernetworking-plugins is not installed: %v", err)
	}
	lab := twin.Lab{Reference: dir, Ours: t.TempDir(), Dir: t.TempDir()}
	product.Install(t, lab.Ours)
	return lab
}

// -run selects exactly the cases that its pattern matches, and TestKernelTwin ends.
func TestKernelTwinPattern(t *testing.T) {
	newLab(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), kerneltest.Timeout(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.v", "-test.run", "^Nothing/(a|b)|^TestKernelTwin$/^static$/no_CIDR|^Neither")
	cmd.Env = append(os.Environ(), "CNIBOX_LANE=") // also in a guest, where the case is left out
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := strings.Count(string(out), "=== RUN "); n != 2 || !strings.Contains(string(out), "--- PASS: TestKernelTwin/static/no_CIDR") {
		t.Errorf("not the one case alone:\n%s", out)
	}
}

// needs skips a case that cannot run here.
func needs(t *testing.T, c *twin.Case) {
	t.Helper()
	for _, n := range c.Needs {
		option, try := twin.Probe(n)
		kerneltest.Need(t, option, try)
	}
}
