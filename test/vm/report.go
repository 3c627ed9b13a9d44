package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// mark is the prefix of lines of the guest's script.
const mark = "##vm "

// A printer writes blocks of lines, which another guest's lines never interrupt.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

// print writes one block, unless it is empty.
func (p *printer) print(block string) {
	if block == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, strings.TrimSuffix(block, "\n"))
}

// A report converts a guest's output to that of go test.
type report struct {
	kernel  string
	printer *printer
	verbose bool // print every line as it comes
	bench   bool // the guest runs the bench: print all its output

	pkg    string // the package that runs; "": none
	begin  time.Time
	test   string       // the test that prints
	lines  []outputLine // of the package
	ran    int          // tests of the package
	failed []string
	skips  map[string][]string // tests by reason
	others map[string]int      // tests that other lanes run, by reason
	passed map[string]bool
	took   map[string]time.Duration // top-level tests, by "package Test"
	done   bool                     // the guest has run all
}

// outputLine is one line of a test.
type outputLine struct{ test, text string }

func newReport(kernel string, p *printer) *report {
	return &report{kernel: kernel, printer: p, skips: map[string][]string{}, others: map[string]int{}, passed: map[string]bool{}, took: map[string]time.Duration{}}
}

// line parses one line.
func (r *report) line(text string) {
	if r.verbose {
		r.printer.print(r.kernel + ": " + text)
	}
	words, own := strings.CutPrefix(text, mark)
	if !own {
		r.output(text)
		return
	}
	f := strings.Fields(words)
	switch {
	case len(f) == 2 && f[0] == "boot":
		r.printer.print(fmt.Sprintf("=== Linux %s: %s", r.kernel, f[1]))
	case len(f) == 2 && f[0] == "run":
		r.pkg, r.begin, r.test, r.lines, r.ran = f[1], time.Now(), "", nil, 0
	case len(f) == 3 && f[0] == "exit" && f[1] == r.pkg:
		r.exit(f[2])
	case len(f) == 1 && f[0] == "done":
		r.done = true
		r.printer.print(r.slowest() + r.skipped())
	}
}

// output parses a line that a test binary wrote with -test.v.
func (r *report) output(text string) {
	if r.bench && !r.verbose {
		r.printer.print(text)
	}
	if rest, ok := strings.CutPrefix(text, "=== "); ok {
		if f := strings.Fields(rest); len(f) == 2 {
			r.test = f[1]
			if f[0] == "RUN" {
				r.ran++
			}
		}
		return
	}
	if f := strings.Fields(text); len(f) > 3 && f[0] == "---" {
		r.test = f[2]
		r.passed[f[2]] = r.passed[f[2]] || f[1] == "PASS:"
		if took, err := time.ParseDuration(strings.Trim(f[3], "()")); err == nil && !strings.Contains(f[2], "/") {
			r.took[r.pkg+" "+f[2]] = took
		}
	}
	if _, reason, ok := strings.Cut(text, "SKIPPED: "); ok && strings.HasPrefix(reason, kerneltest.OtherLane) {
		r.others[reason]++
	} else if ok {
		r.skips[reason] = append(r.skips[reason], r.test)
	}
	r.lines = append(r.lines, outputLine{r.test, text})
}

// exit prints the result of a package.
func (r *report) exit(code string) {
	took := time.Since(r.begin).Seconds()
	result := fmt.Sprintf("%s\t%.3fs\t(Linux %s)", r.pkg, took, r.kernel)
	switch {
	case code != "0":
		r.failed = append(r.failed, r.pkg)
		r.printer.print(r.failure() + "FAIL\t" + result)
	case r.ran == 0 && !r.bench:
		r.printer.print("ok  \t" + result + " [no tests to run]")
	default:
		r.printer.print("ok  \t" + result)
	}
	r.pkg, r.lines = "", nil
}

// failure returns the package's output without the lines of tests that passed or were skipped, or
// all of it if the binary crashed.
func (r *report) failure() string {
	bad := map[string]bool{}
	for _, s := range r.lines {
		if f := strings.Fields(s.text); len(f) > 2 && f[0] == "---" && f[1] == "FAIL:" {
			bad[f[2]] = true
		}
	}
	var out strings.Builder
	for _, s := range r.lines {
		if bad[s.test] || len(bad) == 0 || !strings.HasPrefix(s.text, " ") && !strings.HasPrefix(s.text, "--- ") {
			fmt.Fprintln(&out, s.text)
		}
	}
	return out.String()
}

// printBroken prints the last output of a guest that failed.
func (r *report) printBroken(err error, console string) {
	var out strings.Builder
	if r.pkg != "" {
		for _, s := range r.lines[max(0, len(r.lines)-consoleTail):] {
			fmt.Fprintln(&out, s.text)
		}
		fmt.Fprintf(&out, "FAIL\t%s in %s\t(Linux %s)\n", r.pkg, r.test, r.kernel)
	}
	fmt.Fprintf(&out, "FAIL\tLinux %s: %v; its console ends with:\n%s\n", r.kernel, err, console)
	r.printer.print(out.String())
}

// printTimes prints the elapsed time of the guest, and its processor time: on a busy machine the
// first says little.
func (r *report) printTimes(wall, processor time.Duration) {
	r.printer.print(fmt.Sprintf("=== Linux %s: %.0f s, %.0f s of a processor", r.kernel, wall.Seconds(), processor.Seconds()))
}

// slowest lists the slowest tests.
func (r *report) slowest() string {
	const most = 12
	tests := slices.SortedFunc(maps.Keys(r.took), func(a, b string) int { return cmp.Compare(r.took[b], r.took[a]) })
	var out strings.Builder
	for _, test := range tests[:min(most, len(tests))] {
		fmt.Fprintf(&out, "slow\t%s\t%.1fs\t(Linux %s)\n", test, r.took[test].Seconds(), r.kernel)
	}
	return out.String()
}

// verdict returns an error if a package failed.
func (r *report) verdict() error {
	if len(r.failed) > 0 {
		return fmt.Errorf("tests failed in %s", strings.Join(r.failed, ", "))
	}
	return nil
}

// skipped lists what this kernel or the guest lacks, with the tests that need it, and how many tests the
// lane leaves out.
func (r *report) skipped() string {
	var out strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(r.skips)) {
		fmt.Fprintf(&out, "SKIPPED: Linux %s: %s (%s)\n", r.kernel, reason, strings.Join(r.skips[reason], ", "))
	}
	for reason, n := range r.others {
		fmt.Fprintf(&out, "SKIPPED: Linux %s: %s (%d tests)\n", r.kernel, reason, n)
	}
	return out.String()
}

// missedEverywhere lists the tests that were skipped and passed in no guest: nothing has shown that
// they can pass.
func missedEverywhere(reports []*report) string {
	missed := map[string]bool{}
	for _, r := range reports {
		for _, tests := range r.skips {
			for _, test := range tests {
				missed[test] = !slices.ContainsFunc(reports, func(r *report) bool { return r.passed[test] })
			}
		}
	}
	var out strings.Builder
	for _, test := range slices.Sorted(maps.Keys(missed)) {
		if missed[test] {
			fmt.Fprintf(&out, "SKIPPED: %s passed on NO kernel\n", test)
		}
	}
	return out.String()
}
