// Command bench measures cnibox against the reference plugins and against the bare work of the
// kernel, side by side in one run, as whole processes:
//
//	go run ./bench [-quick] [-only NAME,NAME] [-json FILE] [-base FILE]
//	go run ./bench -json FILE -write FILE,FILE
//
// It runs in a sandbox with its own host namespace, so it neither sees nor changes the machine's
// links, rules and leases. Subjects take turns within each round, so that load on the machine
// affects all of them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cnibox/test/sandbox"
)

// toolsVar passes the directory of bare and peak to the second process.
const toolsVar = "CNIBOX_BENCH_TOOLS"

// options are the flags.
type options struct {
	bin, base, reference, json, write, only, tools string
	quick, strict                                  bool
	rounds                                         int
}

// parseFlags parses the flags, which both processes get.
func parseFlags() (o options) {
	flag.StringVar(&o.bin, "bin", "../bin/cnibox", "the binary to measure")
	flag.StringVar(&o.base, "base", "", "a binary of an earlier revision: measure against it alone")
	flag.StringVar(&o.reference, "reference", "/usr/lib/cni", "directory with the reference plugins; without it only cnibox is measured")
	flag.StringVar(&o.json, "json", "", "write the figures to this file, too")
	flag.StringVar(&o.write, "write", "", "measure nothing: rewrite the tables of these files from the one of -json")
	flag.StringVar(&o.only, "only", "", "measure these groups alone: "+groupNames())
	flag.StringVar(&o.tools, "tools", "", "directory with bare and peak, where there is no go to build them")
	flag.IntVar(&o.rounds, "rounds", 0, "at most so many rounds, for slow machines (0: as many as each figure needs)")
	flag.BoolVar(&o.quick, "quick", false, "few rounds: shows that all works, the figures are rough")
	flag.BoolVar(&o.strict, "strict", false, "exit with 1 when a bar is missed")
	flag.Parse()
	return o
}

func main() {
	o := parseFlags()
	work := start
	if o.write != "" {
		work = func(o options) (int, error) { return 0, writeTables(o.json, o.write) }
	}
	if o.write == "" && sandbox.Inside() {
		work = measure
	}
	code, err := work(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// start builds bare and peak and measures in the second process. The sandbox has an empty /run and
// maybe no Go, so they are built before it.
func start(o options) (code int, err error) {
	if _, err := os.Stat(o.bin); err != nil {
		return 0, fmt.Errorf("%w (`make build` makes it)", err)
	}
	if os.Geteuid() != 0 {
		return 0, errors.New("needs root: the reference plugins do not work in a user namespace (`sudo make bench`)")
	}
	if o.tools != "" {
		return sandbox.Start()
	}
	tools, err := os.MkdirTemp("", "cnibox-bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tools)
	for _, name := range []string{"bare", "peak"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(tools, name), "./bench/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("build %s, from the directory of the test module: %w", name, err)
		}
	}
	return sandbox.Start(toolsVar + "=" + tools)
}

// measure runs the groups and writes the table as it grows. A missed bar is a failure only with
// -strict: the machine may be busy.
func measure(o options) (code int, err error) {
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	if o.tools == "" {
		o.tools = os.Getenv(toolsVar)
	}
	l, err := newLab(o)
	if err != nil {
		return 0, err
	}
	r := report{Machine: thisMachine(), Reference: l.referenceVersion(), Quick: o.quick}
	r.writeHead(os.Stdout, l)
	for _, g := range groups {
		if (o.base != "") != (g.name == "base") || o.only != "" && !slices.Contains(strings.Split(o.only, ","), g.name) {
			continue
		}
		r.writeGroup(os.Stdout, g, g.run(l))
	}
	if len(r.Lines) == 0 {
		return 0, fmt.Errorf("no group %q: there are %s", o.only, groupNames())
	}
	r.writeFoot(os.Stdout)
	if o.json != "" {
		if err := r.save(o.json); err != nil {
			return 0, err
		}
	}
	if r.count("FAILED") > 0 || o.strict && r.count("MISSED") > 0 {
		return 1, nil
	}
	return 0, nil
}
