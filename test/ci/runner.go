package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/proctree"
)

// A runner runs steps and knows what they have said.
type runner struct {
	tree    *proctree.Tree
	out     io.Writer
	killed  chan os.Signal // ends the run
	results []result
}

// A result is what became of a step.
type result struct {
	name    string
	word    string // ok, FAIL, or "earlier" for one that passed in an earlier run
	took    time.Duration
	skipped int
	why     string // of a failure that is no test's
	failed  []string
	reasons map[string]int // to skip
}

// pauses are between attempts to fetch; after the last there is no other.
var pauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute}

// run runs a step. The error ends the run: what is fetched does not come, or a signal.
func (r *runner) run(s step) (result, error) {
	begin := time.Now()
	fmt.Fprintf(r.out, "\n-- %s: %s --\n", s.name, strings.Join(s.argv, " "))
	res, err := r.once(s)
	for _, pause := range pauses {
		if !s.fetch || res.word == "ok" || err != nil {
			break
		}
		select {
		case <-time.After(pause):
			res, err = r.once(s)
		case got := <-r.killed:
			err = fmt.Errorf("%s: %v", s.name, got)
		}
	}
	res.took = time.Since(begin)
	if err == nil && s.fetch && res.word != "ok" {
		if text, err := os.ReadFile(filepath.Join(logs, s.name+".log")); err == nil {
			fmt.Fprintf(r.out, "%s", text)
		}
		err = fmt.Errorf("%s cannot be fetched: %s; nothing after it was run", s.name, strings.Join(s.argv, " "))
	}
	return res, err
}

// once starts the step, in a mount namespace of its own where that is allowed, and copies what it prints.
func (r *runner) once(s step) (result, error) {
	res := result{name: s.name, word: "FAIL", reasons: map[string]int{}}
	log, err := os.Create(filepath.Join(logs, s.name+".log"))
	if err != nil {
		return res, err
	}
	defer log.Close()
	said, w, err := os.Pipe()
	if err != nil {
		return res, err
	}
	var done <-chan int
	for _, unshare := range []uintptr{unix.CLONE_NEWNS, 0} { // which ordinary users and some containers may not
		cmd := exec.Command(s.argv[0], s.argv[1:]...)
		cmd.Stdout, cmd.Stderr = w, w
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unshare}
		if done, err = r.tree.Start(cmd); !errors.Is(err, unix.EPERM) {
			break
		}
	}
	w.Close()
	if err != nil {
		said.Close()
		return res, err
	}
	out := r.out
	if s.fetch { // lists of packages; what fails is in the summary
		out = io.Discard
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer said.Close()
		copyOutput(said, out, log, &res)
	}()
	limit := time.After(s.limit)
	select {
	case code := <-done:
		if code == 0 {
			res.word = "ok"
		} else {
			res.why = fmt.Sprintf("exit status %d", code)
		}
	case <-limit:
		res.why = "not done within " + s.limit.String()
	case got := <-r.killed:
		res.why = got.String()
		err = fmt.Errorf("%s: %v; what was printed until then: %s", s.name, got, log.Name())
	}
	if left := r.tree.Kill(grace); len(left) > 0 {
		fmt.Fprintf(r.out, "ended: %s\n", strings.Join(left, ", "))
	}
	<-read
	if res.word != "ok" {
		fmt.Fprintf(r.out, "FAIL: %s: %s\n", s.name, res.why)
	}
	return res, err
}

var (
	isFailure = regexp.MustCompile(`^ *--- FAIL|^FAIL|^panic:|: FAIL`)
	isSkip    = regexp.MustCompile(`SKIPPED: .*?(?: \(([0-9]+) times\))?$`)
)

// copyOutput copies what the step prints, and keeps what the summary repeats: failures, and reasons to skip.
func copyOutput(said io.Reader, out, log io.Writer, res *result) {
	lines := bufio.NewReader(said)
	var quoted bool // the lines before belong to a failure
	for {
		line, err := lines.ReadString('\n')
		fmt.Fprint(out, line)
		fmt.Fprint(log, line)
		line = strings.TrimSuffix(line, "\n")
		quoted = quoted && strings.HasPrefix(line, "| ")
		if isFailure.MatchString(line) {
			quoted = true
			res.failed = append(res.failed, line)
		} else if quoted {
			res.failed = append(res.failed, line)
		}
		if m := isSkip.FindStringSubmatch(line); m != nil && !quoted {
			n := 1
			if m[1] != "" {
				n, _ = strconv.Atoi(m[1])
			}
			res.reasons[strings.TrimSuffix(m[0], " ("+m[1]+" times)")] += n
			res.skipped += n
		}
		if err != nil {
			return
		}
	}
}

// most is how many lines of one step's failures the summary repeats.
const most = 60

// summary prints failures, skips and the table, and returns the names of the steps that failed.
func (r *runner) summary(took time.Duration) string {
	fmt.Fprint(r.out, "\n-- summary --\n")
	var failed []string
	reasons := map[string]int{}
	for _, res := range r.results {
		for reason, n := range res.reasons {
			reasons[reason] += n
		}
		if res.word != "FAIL" {
			continue
		}
		failed = append(failed, res.name)
		fmt.Fprintf(r.out, "FAIL: %s: %s: %s\n", res.name, res.why, filepath.Join(logs, res.name+".log"))
		for _, line := range res.failed[:min(len(res.failed), most)] {
			fmt.Fprintln(r.out, line)
		}
	}
	var lines []string
	for reason, n := range reasons {
		if n > 1 {
			reason += fmt.Sprintf(" (%d times)", n)
		}
		lines = append(lines, reason)
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Fprintln(r.out, line)
	}
	for _, res := range r.results {
		fmt.Fprintf(r.out, "%-7s %5.0f s  %s", res.word, res.took.Seconds(), res.name)
		if res.skipped > 0 {
			fmt.Fprintf(r.out, ", %d skipped", res.skipped)
		}
		fmt.Fprintln(r.out)
	}
	fmt.Fprintf(r.out, "%-7s %5.0f s\n", "all", took.Seconds())
	return strings.Join(failed, ", ")
}
