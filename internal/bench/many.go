package main

import (
	"fmt"
	"time"
)

// The bars of many containers.
const (
	barThroughput = 10
	barScale      = 1.3
)

const (
	crowd   = 100 // attached one after the other …
	atATime = 16  // … so many at once
	filled  = 499 // attached before the one that is measured
)

// parallel measures how many containers a second can be attached and detached.
func parallel(l *lab) []line {
	containers, err := newAttachments("parallel", crowd)
	if err != nil {
		return []line{{What: "parallel", Unit: "/s", Error: err.Error()}}
	}
	exec := l.crowd("parallel-exec", l.ours, false, containers)
	cniExec := l.crowd("parallel-cni-exec", l.ours, true, containers)
	var reference map[string]throughput
	if l.reference != "" {
		reference = l.crowd("parallel-reference", l.reference, false, containers)
	}
	var lines []line
	for _, verb := range []string{"ADD", "DEL"} {
		bar := 0.0
		if verb == "ADD" {
			bar = barThroughput
		}
		lines = append(lines,
			compare(verb+", exec'd per applet", exec[verb], reference[verb], 0),
			compare(verb+", cni-exec", cniExec[verb], reference[verb], bar))
	}
	return lines
}

// A throughput is how many calls a second there were. The reference's may fail.
type throughput struct {
	each float64
	errs []error
}

func compare(what string, ours, reference throughput, bar float64) line {
	l := line{What: what, Unit: "/s", Ours: figure{Median: ours.each}, Other: figure{Median: reference.each}, Bar: bar}
	l.Ratio = ratio(ours.each, reference.each)
	if n := len(ours.errs); n > 0 {
		l.Error = fmt.Sprintf("%d of %d failed: %v", n, crowd, ours.errs[0])
	}
	if n := len(reference.errs); n > 0 {
		l.What += fmt.Sprintf(" (reference: %d failed)", n)
	}
	return l
}

// crowd attaches and detaches all containers on a new host.
func (l *lab) crowd(name, plugins string, cniExec bool, containers []attachment) map[string]throughput {
	n, err := l.newNetwork(name, plugins)
	if err != nil {
		return map[string]throughput{"ADD": {errs: []error{err}}}
	}
	var r caller = n.byExec()
	if cniExec {
		r = &byCniExec{network: n}
	}
	done := map[string]throughput{}
	for _, verb := range []string{"ADD", "DEL"} {
		took, errs := n.all(r, verb, containers, atATime)
		done[verb] = throughput{float64(len(containers)) / took.Seconds(), errs}
	}
	return done
}

// scale measures the 500th container against the 1st, in the same rounds.
func scale(l *lab) []line {
	first, err := l.contenders("first", 0)
	if err != nil {
		return []line{{What: "1st container", Unit: "ms", Error: err.Error()}}
	}
	begin := time.Now()
	last, err := l.contenders("last", filled)
	if err != nil {
		return []line{{What: "499 containers", Unit: "ms", Error: err.Error()}}
	}
	if took := time.Since(begin); took > time.Minute {
		fmt.Printf("(attaching %d containers to each host took %.0f s)\n", filled, took.Seconds())
	}
	for i := range last {
		last[i].name += " 500th"
	}
	r := interleave(l.rounds(15), append(first, last...)...)
	var lines []line
	for _, verb := range verbs {
		lines = append(lines, better(verb+", cni-exec, 500th", r.of(verb, "cni-exec 500th"), r.of(verb, "reference 500th"), 0))
	}
	for _, who := range []string{"exec", "cni-exec", "reference"} {
		for _, verb := range []string{"ADD", "DEL"} {
			bar := barScale
			if who == "reference" {
				bar = 0
			}
			if at := r.of(verb, who+" 500th"); at.took != nil {
				lines = append(lines, within(verb+", "+who+", 500th to 1st", at, r.of(verb, who).milliseconds(), bar))
			}
		}
	}
	return lines
}
