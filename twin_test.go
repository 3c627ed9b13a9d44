package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/internal/twin"
)

// reference is where Debian's package has its plugins.
const reference = "/usr/lib/cni"

// twinsAtOnce is how many cases run at a time: the reference sleeps a lot.
const twinsAtOnce = 4

// TestKernelTwin runs the reference plugins and ours on each configuration of the
// corpus: what differs must stand in the list of differences, and the
// report in the tree must be what comes out. With CNIBOX_TWIN=needs, as in the
// guests of make test-vm, only those run that not every kernel can.
func TestKernelTwin(t *testing.T) {
	lab := newLab(t)
	cases, err := twin.Load("testdata/twin")
	if err != nil {
		t.Fatal(err)
	}
	list, err := twin.LoadDifferences("testdata/twin/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CNIBOX_TWIN") == "needs" {
		cases = slices.DeleteFunc(cases, func(c twin.Case) bool {
			if len(c.Needs) == 0 {
				list.Skip(c.Name)
			}
			return len(c.Needs) == 0
		})
	}
	report := "testdata/twin/report.md"
	rows, err := twin.ReadReport(report)
	if err != nil {
		t.Fatal(err)
	}
	results := make([]chan outcome, len(cases))
	slots := make(chan struct{}, twinsAtOnce)
	for i := range cases {
		if results[i] = make(chan outcome, 1); wanted(&cases[i]) {
			go func() {
				slots <- struct{}{}
				diff, said, err := lab.Run(&cases[i])
				<-slots
				results[i] <- outcome{diff, said, err}
			}()
		}
	}
	for i := range cases {
		c := &cases[i]
		ran := false
		t.Run(c.Name, func(t *testing.T) {
			needs(t, c)
			o := <-results[i]
			if o.err != nil {
				t.Fatal(o.err)
			}
			ids, open := list.Explain(c.Name, o.diff)
			if ran = true; len(open) > 0 {
				t.Errorf("not in the list of differences (- reference, + ours):\n%s\nwhat the plugins said:\n%s",
					strings.Join(open, "\n"), strings.Join(o.said, "\n"))
			}
			row := twin.Row(c.Name, ids)
			if row != rows[c.Name] && !*update {
				t.Errorf("the report has %q, want %q", rows[c.Name], row)
			}
			rows[c.Name] = row
		})
		if !ran {
			list.Skip(c.Name)
		}
	}
	for _, u := range list.Unused() {
		t.Errorf("no case needs this difference any more: %s", u)
	}
	if *update {
		if err := twin.WriteReport(report, cases, rows); err != nil {
			t.Fatal(err)
		}
	}
}

// An outcome is what a case's run found.
type outcome struct {
	diff, said []string
	err        error
}

// newLab makes a folder with a link for each applet. Without the reference
// plugins the test is skipped, or fails if CNIBOX_REFERENCE=require.
func newLab(t *testing.T) twin.Lab {
	t.Helper()
	kerneltest.NS(t) // the privilege for all that follows
	if _, err := os.Stat(filepath.Join(reference, "bridge")); err != nil {
		if os.Getenv("CNIBOX_REFERENCE") == "require" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: containernetworking-plugins is not installed: %v", err)
	}
	lab := twin.Lab{Reference: reference, Ours: t.TempDir(), Dir: t.TempDir()}
	self, err := os.Executable()
	for _, name := range names() {
		err = errors.Join(err, os.Symlink(self, filepath.Join(lab.Ours, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return lab
}

// wanted tells whether a case is to run here, before there is a test of its own
// that would not: the pattern of -run is applied part by part.
func wanted(c *twin.Case) bool {
	name := strings.Split("TestKernelTwin/"+strings.ReplaceAll(c.Name, " ", "_"), "/")
	for i, part := range strings.Split(flag.Lookup("test.run").Value.String(), "/") {
		if i >= len(name) {
			break
		}
		if ok, err := regexp.MatchString(part, name[i]); err == nil && !ok {
			return false
		}
	}
	for _, n := range c.Needs {
		if _, try := twin.Probe(n); try() != nil {
			return false
		}
	}
	return !slices.ContainsFunc(c.Types(), func(plugin string) bool { return !slices.Contains(names(), plugin) })
}

// needs skips a case that cannot run here.
func needs(t *testing.T, c *twin.Case) {
	t.Helper()
	for _, n := range c.Needs {
		option, try := twin.Probe(n)
		kerneltest.Need(t, option, try)
	}
	for _, plugin := range c.Types() {
		if !slices.Contains(names(), plugin) {
			t.Skipf("SKIPPED: there is no applet %s", plugin)
		}
	}
}
