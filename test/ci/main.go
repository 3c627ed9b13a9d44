// Command ci runs the steps of a lane of continuous integration, one after another: `gate` is what each change
// passes, `long` is everything else. .ci/run and `make ci-long` call it.
//
//	ci gate | long [STEP …]
//
// The current directory is the root of the repository. It installs the Debian packages that steps need where it may, and
// ends at once with what it says if these, or what is fetched, do not come. Each step is a make target with a limit: past
// it, and when the run is interrupted, everything that the step has started is ended; its mounts are of a mount namespace
// of its own. What it printed is in bin/ci/STEP.log. At the end are its failures again, what was skipped, and a table.
//
// The long lane goes on where an earlier run of the same commit has ended: a step that has passed is not run
// again unless it is named.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/test/proctree"
)

// logs is the directory of the logs, from the root of the repository.
const logs = "bin/ci"

// grace is how long a step's processes have to say what they were doing when they are ended.
const grace = 10 * time.Second

func main() {
	flag.Parse()
	if err := run(flag.Arg(0), flag.Args()); err != nil {
		fmt.Printf("\n%v\nFAIL\n", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

func run(name string, args []string) error {
	begin := time.Now()
	lane, ok := lanes[name]
	if !ok {
		return fmt.Errorf("usage: ci gate | long [STEP …]")
	}
	steps, named, err := lane.choose(args[1:])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(releaseDir); err != nil { // a release of an earlier run: make release wants it empty
		return err
	}
	tree, err := proctree.New()
	if err != nil {
		return err
	}
	r := &runner{tree: tree, out: os.Stdout, killed: make(chan os.Signal, 1)}
	signal.Notify(r.killed, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var rec *record
	if lane.resumed {
		if rec, err = openRecord(filepath.Join(logs, name)); err != nil {
			return err
		}
	}
	if err := r.install(steps); err != nil {
		return err
	}
	for _, s := range steps {
		if earlier, ok := rec.passed(s.name); ok && !named {
			r.results = append(r.results, earlier)
			continue
		}
		res, err := r.run(s)
		r.results = append(r.results, res)
		if err == nil {
			err = rec.add(res)
		}
		if err != nil {
			r.summary(time.Since(begin))
			return err
		}
	}
	if left := r.summary(time.Since(begin)); left != "" {
		return fmt.Errorf("failed: %s", left)
	}
	return nil
}

// choose returns the steps that are named, in the order of the lane; none: all.
func (l lane) choose(names []string) (steps []step, named bool, err error) {
	if len(names) == 0 {
		return l.steps, false, nil
	}
	for _, n := range names {
		if !slices.ContainsFunc(l.steps, func(s step) bool { return s.name == n }) {
			var all []string
			for _, s := range l.steps {
				all = append(all, s.name)
			}
			return nil, false, fmt.Errorf("there is no step %q: %s", n, strings.Join(all, ", "))
		}
	}
	for _, s := range l.steps {
		if slices.Contains(names, s.name) {
			steps = append(steps, s)
		}
	}
	return steps, true, nil
}
