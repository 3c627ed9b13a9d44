// Command bench measures cnibox against the reference plugins and against the bare work of the
// kernel, side by side in one run, as whole processes:
//
//	go run ./bench [-quick] [-only NAME,NAME] [-json FILE] [-base FILE]
//	go run ./bench -json FILE -write FILE,FILE
//
// Each group of figures runs in a sandbox of its own, so it neither sees nor changes the links, rules
// and leases of the machine, nor those of the groups before. Subjects take turns within each round, so
// that load on the machine affects all of them.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// What the process in a sandbox gets from the first one: the directory of bare and peak, the name of
// its group, and the file that it writes the lines to.
const (
	toolsVar = "CNIBOX_BENCH_TOOLS"
	groupVar = "CNIBOX_BENCH_GROUP"
	linesVar = "CNIBOX_BENCH_LINES"
)

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
	flag.StringVar(&o.reference, "reference", "", "directory with the reference plugins; without it only cnibox is measured")
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
		work = func(o options) (int, error) { return 0, measureGroup(o) }
	}
	code, err := work(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// start builds bare and peak and measures each group in a sandbox. A sandbox has an empty /run and
// maybe no Go, so they are built before it. A missed bar is a failure only with -strict: the machine
// may be busy.
func start(o options) (code int, err error) {
	if _, err := os.Stat(o.bin); err != nil {
		return 0, fmt.Errorf("%w (`make build` makes it)", err)
	}
	if os.Geteuid() != 0 {
		return 0, errors.New("needs root: the reference plugins do not work in a user namespace (`sudo make bench`)")
	}
	selected := slices.DeleteFunc(slices.Clone(groups), func(g group) bool {
		return (o.base != "") != (g.name == "base") || o.only != "" && !slices.Contains(strings.Split(o.only, ","), g.name)
	})
	if len(selected) == 0 {
		return 0, fmt.Errorf("no group %q: there are %s", o.only, groupNames())
	}
	dir, err := os.MkdirTemp("", "cnibox-bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if o.tools == "" {
		o.tools = dir
		if err := buildTools(dir); err != nil {
			return 0, err
		}
	}
	if slices.ContainsFunc(selected, func(g group) bool { return g.name == "netavark" }) {
		if err := fetchNetavark(o.tools); err != nil {
			fmt.Fprintln(os.Stderr, "bench: netavark:", err)
		}
	}
	r := report{Machine: thisMachine(), Reference: referenceVersion(o.reference), Quick: o.quick}
	r.writeHead(os.Stdout)
	for _, g := range selected {
		lines, err := runGroup(g, o.tools, filepath.Join(dir, g.name+".json"))
		if err != nil {
			return 0, fmt.Errorf("group %s: %w", g.name, err)
		}
		r.writeGroup(os.Stdout, g, lines)
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

// buildTools builds bare and peak.
func buildTools(dir string) error {
	for _, name := range []string{"bare", "peak"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), "./bench/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s, from the directory of the test module: %w", name, err)
		}
	}
	return nil
}

// runGroup measures a group in a sandbox. file is where the lines go on their way.
func runGroup(g group, tools, file string) (lines []line, err error) {
	code, err := sandbox.Start(toolsVar+"="+tools, groupVar+"="+g.name, linesVar+"="+file)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d", code)
	}
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return lines, json.Unmarshal(b, &lines)
}

// measureGroup is the work of the process in a sandbox.
func measureGroup(o options) error {
	if err := sandbox.Setup(); err != nil {
		return err
	}
	if err := awaitCleanup(); err != nil {
		return err
	}
	o.tools = os.Getenv(toolsVar)
	l, err := newLab(o)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(groups, func(g group) bool { return g.name == os.Getenv(groupVar) })
	if i < 0 {
		return fmt.Errorf("no group %q", os.Getenv(groupVar))
	}
	b, err := json.Marshal(groups[i].run(l))
	if err != nil {
		return err
	}
	return os.WriteFile(os.Getenv(linesVar), b, 0o600)
}

// awaitCleanup waits until the kernel has deleted the namespaces that are gone. It deletes all that
// are gone by then in one go, their links first: when a second one goes, it is done with the first.
func awaitCleanup() error {
	return errors.Join(awaitDeletion(), awaitDeletion())
}

// awaitDeletion makes a namespace with a link, removes it, and waits until the link is gone.
func awaitDeletion() error {
	const limit = 2 * time.Minute
	ns, err := sandbox.NewNetNS("last")
	if err != nil {
		return err
	}
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.CreateLink(rtnl.LinkSpec{Name: "last0", Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns.NS}})
	if err != nil {
		return err
	}
	if err := ns.Remove(); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < limit; settle() {
		if _, err := host.LinkAt(link.Index); errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fmt.Errorf("the kernel has not deleted a namespace after %s", limit)
}
