package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// An event is one of test2json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// A report prints what matters of tests while they run. Its methods may be called at once.
type report struct {
	mu   sync.Mutex
	out  io.Writer
	log  io.Writer
	said map[[2]string]*strings.Builder // of tests that have not ended, and of packages: "" is no test

	passed, failures, skipped int
	reasons                   map[string]int // to skip
	bad                       bool
}

func newReport(out, log io.Writer) *report {
	return &report{out: out, log: log, said: map[[2]string]*strings.Builder{}, reasons: map[string]int{}}
}

func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

// failed makes the run a failure, which is printed if no test's was.
func (r *report) failed(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.bad {
		fmt.Fprintln(r.out, "FAIL:", why)
	}
	r.bad = true
}

// read takes the output of go test -json to its end.
func (r *report) read(events io.Reader) {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err != nil {
			return
		}
	}
}

func (r *report) line(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" { // of the go command itself
		fmt.Fprint(r.out, line)
		fmt.Fprint(r.log, line)
		return
	}
	fmt.Fprint(r.log, e.Output)
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.text(key).WriteString(e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(e)
		} else {
			r.testEnded(e)
		}
		delete(r.said, key)
	}
}

func (r *report) text(key [2]string) *strings.Builder {
	if r.said[key] == nil {
		r.said[key] = new(strings.Builder)
	}
	return r.said[key]
}

func (r *report) testEnded(e event) {
	said := r.text([2]string{e.Package, e.Test}).String()
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		reason := "SKIPPED: no reason"
		if i := strings.Index(said, "SKIPPED: "); i >= 0 {
			reason, _, _ = strings.Cut(said[i:], "\n")
		}
		r.reasons[reason]++
	case "fail":
		r.failures++
		r.bad = true
		fmt.Fprintf(r.out, "--- FAIL: %s %s (%.2fs)\n%s", e.Package, e.Test, e.Elapsed, quoted(said))
	}
}

// packageEnded prints the line of the package and, where it failed, what belongs to no test that has ended.
func (r *report) packageEnded(e event) {
	said := r.text([2]string{e.Package, ""}).String()
	if e.Action == "fail" {
		r.bad = true
		for key, text := range r.said {
			if key[0] == e.Package && key[1] != "" {
				fmt.Fprintf(r.out, "--- FAIL: %s %s did not end\n%s", key[0], key[1], quoted(text.String()))
				delete(r.said, key)
			}
		}
		fmt.Fprintf(r.out, "%sFAIL\t%s\t%.3fs\n", quoted(said), e.Package, e.Elapsed)
		return
	}
	if e.Action == "pass" {
		fmt.Fprintf(r.out, "ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
	}
}

// quoted returns the lines that a test has said, without those of package testing's own.
func quoted(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "=== ") || strings.HasPrefix(trimmed, "--- ") || trimmed == "PASS" || trimmed == "FAIL" || strings.HasPrefix(line, "FAIL\t") {
			continue
		}
		b.WriteString("| " + line)
	}
	return b.String()
}

// end prints each reason to skip once, with its number, and the numbers of tests.
func (r *report) end(log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var reasons []string
	for reason, n := range r.reasons {
		if n > 1 {
			reason = fmt.Sprintf("%s (%d times)", reason, n)
		}
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		fmt.Fprintln(r.out, reason)
	}
	fmt.Fprintf(r.out, "all that the tests said: %s\n%d passed, %d failed, %d skipped\n", log, r.passed, r.failures, r.skipped)
}

func (r *report) status() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad {
		return 1
	}
	return 0
}
