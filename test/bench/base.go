package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/test/sandbox"
)

// Limits of our times divided by those of the earlier revision: barBaseAdd for ADD, barBase for
// everything else.
const (
	barBaseAdd = 1.10
	barBase    = 1.05
)

// compareBase compares the binary with one of an earlier revision, in the same rounds, each on its
// own hosts.
func compareBase(l *lab) (lines []line) {
	if l.base == "" {
		return nil
	}
	for _, part := range []func() ([]line, error){l.baseSize, l.baseStart, l.baseChain, l.basePlugins, l.baseLeases, l.baseMemory} {
		more, err := part()
		lines = append(lines, more...)
		if err != nil {
			lines = append(lines, line{What: "against the base", Unit: "ms", Error: err.Error()})
		}
	}
	return lines
}

// installBase installs the earlier revision's binary and its links.
func (l *lab) installBase(file string) (err error) {
	l.base = filepath.Join(l.dir, "base")
	l.baseBin, err = installCopy(file, l.base)
	return err
}

// sides returns the plugin directories of both binaries, by the name of their subjects.
func (l *lab) sides() map[string]string { return map[string]string{"ours": l.ours, "base": l.base} }

func (l *lab) baseSize() ([]line, error) {
	size := line{What: "binary", Unit: "MB"}
	for file, to := range map[string]*figure{l.bin: &size.Ours, l.baseBin: &size.Other} {
		st, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		to.Median = float64(st.Size()) / 1e6
	}
	size.Ratio = ratio(size.Ours.Median, size.Other.Median)
	return []line{size}, nil
}

func (l *lab) baseStart() ([]line, error) {
	var subjects []subject
	for who, dir := range l.sides() {
		subjects = append(subjects, process(who, filepath.Join(dir, "bridge")))
	}
	r := l.interleave(l.rounds(200), subjects...)
	return []line{slower("VERSION", r, "start", "ours", "base")}, nil
}

func (l *lab) baseChain() ([]line, error) {
	var subjects []subject
	for who, dir := range l.sides() {
		n, err := l.newNetwork("base-chain-"+who, dir)
		if err != nil {
			return nil, err
		}
		a, err := newAttachment(n.name, 19999)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, n.life("exec "+who, n.byExec(), a), n.life("cni-exec "+who, &byCniExec{network: n}, a))
	}
	r := l.interleave(l.rounds(60), subjects...)
	var lines []line
	for _, how := range []string{"cni-exec", "exec"} {
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			lines = append(lines, slower(fmt.Sprintf("chain %s, %s", verb, how), r, verb, how+" ours", how+" base"))
		}
	}
	return lines, nil
}

func (l *lab) basePlugins() (lines []line, err error) {
	for _, t := range trials() {
		var subjects []subject
		for who, dir := range l.sides() {
			s, err := l.trialSubjects(who, dir, t)
			if err != nil {
				return lines, err
			}
			subjects = append(subjects, s[0])
		}
		r := l.interleave(l.rounds(30), subjects...)
		lines = append(lines, slower(t.what+", ADD", r, "ADD", "ours", "base"), slower(t.what+", DEL", r, "DEL", "ours", "base"))
	}
	return lines, nil
}

func (l *lab) baseLeases() ([]line, error) {
	ns, err := sandbox.NewNetNS("base-leases")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(filepath.Join(l.dir, "leases"))
	var lines []line
	for _, count := range []int{10, 60_000} {
		var subjects []subject
		for who, dir := range l.sides() {
			s, err := l.newStore("base-"+who, dir, count)
			if err != nil {
				return lines, err
			}
			subjects = append(subjects, s.subject(who, ns.Path))
		}
		r := l.interleave(l.rounds(30), subjects...)
		for _, verb := range []string{"ADD", "DEL"} {
			lines = append(lines, slower(fmt.Sprintf("host-local %s at %d", verb, count), r, verb, "ours", "base"))
		}
	}
	return lines, nil
}

func (l *lab) baseMemory() ([]line, error) {
	m := line{What: "peak memory, the most", Unit: "MiB"}
	for who, to := range map[string]*figure{"ours": &m.Ours, "base": &m.Other} {
		kib, err := l.peaksOf("base-memory-"+who, l.sides()[who], true)
		if err != nil {
			return nil, err
		}
		for _, v := range kib {
			to.Median = max(to.Median, v/1024)
		}
	}
	m.Ratio = ratio(m.Ours.Median, m.Other.Median)
	return []line{m}, nil
}

// slower compares one step of two subjects by the ratio ours/base.
func slower(what string, r results, step, ours, base string) line {
	bar := barBase
	if step == "ADD" {
		bar = barBaseAdd
	}
	l := within(what, r.of(step, ours), r.of(step, base).milliseconds(), bar)
	l.fail(r.of(step, base).err)
	return l
}
