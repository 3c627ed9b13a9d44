package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cnibox/cnibox/test/sandbox"
)

// Limits of the size in bytes, of memory in KiB, and of the time of VERSION beyond that of
// /bin/true in milliseconds.
const (
	mostBytes = 7_000_000
	mostKiB   = 12 * 1024
	mostStart = 1.6
)

// size compares the binary with the sum of the reference plugins.
func size(l *lab) []line {
	st, err := os.Stat(l.bin)
	if err != nil {
		return []line{{What: "binary", Unit: "MB", Error: err.Error()}}
	}
	ours := figure{Median: float64(st.Size()) / 1e6}
	lines := []line{{
		What: "binary, of the budget", Unit: "MB", Ours: ours, Other: figure{Median: mostBytes / 1e6},
		Ratio: float64(st.Size()) / mostBytes, Bar: 1, Most: true,
	}}
	if l.reference == "" {
		return lines
	}
	all := line{What: "all plugins of the reference", Unit: "MB", Ours: ours}
	files, err := filepath.Glob(filepath.Join(l.reference, "*"))
	all.fail(err)
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
			all.Other.Median += float64(st.Size()) / 1e6
		}
	}
	all.Ratio = ratio(all.Other.Median, ours.Median)
	return append(lines, all)
}

// process makes a subject of a program that is run in each round.
func process(name string, argv ...string) subject {
	call := sandbox.Call{Argv: argv, Env: []string{"CNI_COMMAND=VERSION"}, Stdin: []byte(`{"cniVersion":"1.0.0"}`)}
	return subject{name: name, steps: []string{"start"}, round: func() ([]cost, error) {
		w := begin()
		_, _, err := call.Run()
		return []cost{w.took()}, err
	}}
}

// bareStart is an empty Go process, which other groups also have in their rounds.
func (l *lab) bareStart() subject { return process("bare", filepath.Join(l.tools, "bare")) }

// startCost compares VERSION with the start of an empty process.
func startCost(l *lab) []line {
	subjects := []subject{
		process("true", filepath.Join(l.tools, "true")), process("ours", filepath.Join(l.ours, "bridge")),
	}
	all, err := l.eachPlugin()
	if l.reference != "" {
		subjects = append(subjects, process("reference", filepath.Join(l.reference, "bridge")))
	}
	r := l.interleave(l.rounds(100), append(subjects, all...)...)
	ours := r.of("start", "ours")
	lines := []line{
		within("VERSION, to /bin/true", ours, r.of("start", "true").milliseconds(), 0),
		within("VERSION, to an empty Go one", ours, r.of("start", "bare").milliseconds(), 0),
		slowest(all, r, err),
	}
	if l.reference != "" {
		lines = append(lines, better("VERSION, to the reference", ours, r.of("start", "reference"), 0))
	}
	return lines
}

// tools are the applets that are not plugins.
var tools = []string{"cnibox", "cni-exec", "netavark"}

// eachPlugin returns VERSION of every plugin.
func (l *lab) eachPlugin() (all []subject, err error) {
	entries, err := os.ReadDir(l.ours)
	for _, e := range entries {
		if name := e.Name(); !slices.Contains(tools, name) {
			all = append(all, process(name, filepath.Join(l.ours, name)))
		}
	}
	return all, err
}

// slowest compares the time of the slowest plugin beyond that of /bin/true with the limit.
func slowest(all []subject, r results, err error) line {
	l := line{What: "slowest, over /bin/true", Unit: "ms", Other: figure{Median: mostStart}, Bar: 1, Most: true}
	least := r.of("start", "true").milliseconds().Median
	for _, s := range all {
		at := r.of("start", s.name)
		if at.err != nil && err == nil {
			err = fmt.Errorf("%s: %w", s.name, at.err)
		}
		if over := at.milliseconds().Median - least; over > l.Ours.Median {
			l.Ours.Median = over
			l.Note = fmt.Sprintf("%s, of %d plugins; /bin/true takes %s ms", s.name, len(all), short(least))
		}
	}
	l.Ratio = ratio(l.Ours.Median, mostStart)
	l.fail(err)
	return l
}

// peaks collects the peak memory of each program's calls.
type peaks struct {
	lab  *lab
	file string
	kib  map[string]float64
}

// wrap returns the prefix that measures a call, after it recorded the call before.
func (p *peaks) wrap(program string) []string {
	p.addLast()
	p.file = filepath.Join(p.lab.dir, "peak-"+program)
	return []string{filepath.Join(p.lab.tools, "peak"), p.file}
}

// addLast records the last figure; a failed call has left none.
func (p *peaks) addLast() {
	b, err := os.ReadFile(p.file)
	if err != nil {
		return
	}
	program := filepath.Base(p.file)[len("peak-"):]
	kib, _ := strconv.ParseFloat(string(b), 64)
	p.kib[program] = max(p.kib[program], kib)
	os.Remove(p.file)
}

// memory measures each program of the chain, called by exec, and cni-exec: ru_maxrss of
// getrusage(2).
func memory(l *lab) []line {
	ours, err := l.peaksOf("memory-ours", l.ours, true)
	var reference map[string]float64
	if err == nil && l.reference != "" {
		reference, err = l.peaksOf("memory-reference", l.reference, false)
	}
	var lines []line
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		lines = append(lines, line{
			What: name, Unit: "MiB", Ours: figure{Median: ours[name] / 1024}, Other: figure{Median: reference[name] / 1024},
		})
	}
	worst := line{What: "the most, of the limit", Unit: "MiB", Other: figure{Median: mostKiB / 1024}, Bar: 1, Most: true}
	for _, kib := range ours {
		worst.Ours.Median = max(worst.Ours.Median, kib/1024)
	}
	worst.Ratio = ratio(worst.Ours.Median, worst.Other.Median)
	worst.fail(err)
	return append(lines, worst)
}

// peaksOf attaches and detaches a container a few times on a network of those plugins.
func (l *lab) peaksOf(name, plugins string, cniExec bool) (map[string]float64, error) {
	n, err := l.newNetwork(name, plugins)
	if err != nil {
		return nil, err
	}
	a, err := newAttachment(name, 20000)
	if err != nil {
		return nil, err
	}
	p := &peaks{lab: l, kib: map[string]float64{}}
	exec := n.byExec()
	exec.wrap = p.wrap
	runtimes := []caller{exec}
	if cniExec {
		runtimes = append(runtimes, &byCniExec{n, p.wrap})
	}
	for _, r := range runtimes {
		for range l.rounds(5) {
			if _, err := n.life(name, r, a).round(); err != nil {
				return p.kib, fmt.Errorf("%s: %w", plugins, err)
			}
		}
	}
	p.addLast()
	return p.kib, nil
}
