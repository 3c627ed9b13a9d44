// Package script runs tests that are written as scripts: lines of commands,
// then the files they need, as
//
//	# loopback: lo comes up
//	cni ADD loopback net.json
//	stdout '"name": "lo"'
//	container link lo up
//	-- net.json --
//	{"cniVersion":"1.1.0","name":"demo","type":"loopback"}
//
// Each script runs in an empty folder, $WORK, with a new network namespace as
// its host and another one, $NETNS, as its container. $WORK/bin has a link for
// each applet and is CNI_PATH. In arguments outside of single quotes variables
// are replaced, in files $WORK and $NETNS. A "!" before a command wants it to
// fail. The commands:
//
//	cni VERB APPLET FILE [K=V…]  call a plugin as a runtime does, with FILE (or - for
//	                             nothing) as its stdin; CNI_CONTAINERID is ctr1 and
//	                             CNI_IFNAME eth0 unless a K=V says otherwise
//	exec APPLET [ARG…]           call any applet
//	needs KIND                   skip the rest where the kernel has no such links, as ipvlan
//	env K=V…                     for all calls from here on
//	stdin FILE                   of the next exec; else it is empty
//	stdout REGEXP                the last call's stdout matches; stderr likewise
//	status N                     the last call's exit code is N
//	host link NAME [up|down]     the link is there (and up, or down); container likewise
//	host addr NAME PREFIX        the link has the address
//	host route PREFIX [GW]       the main table has the route
//	host sysctl KEY VALUE        as "net/ipv4/ip_forward 1"
//	host save                    remember links, addresses and routes; container likewise
//	host same                    they are as they were at save
//	exists FILE…                 relative names are below $WORK, as everywhere
//	cmp A B                      equal but for newlines at the end; "stdout" is the last call's
//	cp A B, mkdir DIR, rm FILE, symlink TARGET FILE
//
// It is for tests only.
package script

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/test/product"
)

// A Suite is a folder of scripts and what they run on.
type Suite struct {
	Dir string // of the *.txt files

	// Plain runs the scripts in the namespace of the test: they must not ask
	// for a container and need no privilege.
	Plain bool
}

// Run runs each script twice, with plugins in process and with exec forced.
// The two must not differ, whichever way a runtime calls.
func (s Suite) Run(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(s.Dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", s.Dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		for how, env := range map[string]string{"inprocess": product.ForceExec + "=", "exec": product.ForceExec + "=1"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				r := s.start(t, string(text))
				r.env = append(r.env, env)
				r.run(file)
			})
		}
	}
}

// A runner is one run of one script.
type runner struct {
	t          *testing.T
	work       string
	netns      string // path; empty in plain scripts
	lines      []string
	env        []string
	stdin      []byte
	host, cont *rtnl.NS // nil in plain scripts
	saved      map[*rtnl.NS]string

	out, err bytes.Buffer // of the last call
	code     int
}

// start makes the folder, the links and the namespaces.
// All of it is gone when the test ends.
func (s Suite) start(t *testing.T, text string) *runner {
	r := &runner{t: t, work: t.TempDir(), saved: map[*rtnl.NS]string{}}
	if !s.Plain {
		r.host, r.cont = kerneltest.NS(t), kerneltest.NS(t)
		r.netns = kerneltest.NSPath(t, r.cont)
	}
	bin := r.path("bin")
	r.env = []string{"CNI_PATH=" + bin, "WORK=" + r.work, "NETNS=" + r.netns}
	product.Install(t, bin)
	r.extract(text)
	return r
}

// extract splits the text at its "-- NAME --" lines and writes the files.
func (r *runner) extract(text string) {
	var name string
	var file []string
	flush := func() {
		if name == "" {
			r.lines = file
			return
		}
		body := strings.NewReplacer("$WORK", r.work, "$NETNS", r.netns).Replace(strings.Join(file, "\n") + "\n")
		err := os.MkdirAll(filepath.Dir(r.path(name)), 0o755)
		if err == nil {
			err = os.WriteFile(r.path(name), []byte(body), 0o644)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	for _, line := range strings.Split(text, "\n") {
		rest, ok := strings.CutPrefix(line, "-- ")
		head, end := strings.CutSuffix(rest, " --")
		if !ok || !end {
			file = append(file, line)
			continue
		}
		flush()
		name, file = head, nil
	}
	flush()
}

// run does the lines in order; the first that is not as wanted ends the test, with
// its number.
func (r *runner) run(file string) {
	for i, line := range r.lines {
		words := r.split(line)
		if len(words) == 0 {
			continue
		}
		wantFail := words[0] == "!"
		if wantFail {
			words = words[1:]
		}
		err := r.command(words[0], words[1:])
		var bad badLine
		switch {
		case errors.As(err, &bad):
			r.t.Fatalf("%s:%d: %s: %v", file, i+1, line, err)
		case err == nil && wantFail:
			r.t.Fatalf("%s:%d: %s: did not fail%s", file, i+1, line, r.last())
		case err != nil && !wantFail:
			r.t.Fatalf("%s:%d: %s: %v%s", file, i+1, line, err, r.last())
		}
	}
}

// last is the last call's output, for messages.
func (r *runner) last() string {
	return fmt.Sprintf("\nexit code %d\n-- stdout --\n%s\n-- stderr --\n%s", r.code, r.out.String(), r.err.String())
}

// split cuts a line into words at blanks. What is in single quotes stays as it
// is; elsewhere variables are replaced. A word that begins with "#" ends the line.
func (r *runner) split(line string) (words []string) {
	var word strings.Builder
	inWord := false
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			word.WriteString(part)
			inWord = true
			continue
		}
		for k, w := range strings.Split(strings.ReplaceAll(part, "\t", " "), " ") {
			if k > 0 && inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
			if strings.HasPrefix(w, "#") && !inWord {
				return words
			}
			if w != "" {
				word.WriteString(os.Expand(w, r.getenv))
				inWord = true
			}
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// getenv is the last value of a variable; empty: none.
func (r *runner) getenv(key string) string {
	value := ""
	for _, kv := range r.env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			value = v
		}
	}
	return value
}

// path is a name below $WORK, unless it is absolute.
func (r *runner) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.work, name)
}
