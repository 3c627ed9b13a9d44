package main

import "fmt"

// Limits of the groups parallel and scale.
const (
	barThroughput = 10
	barScale      = 1.25
)

// Numbers of containers; [lab.crowd] reduces them for -quick.
const (
	many    = 100 // containers of parallel
	atATime = 16  // and how many of them at once
	filled  = 499 // attached before the one that is measured in scale
)

// parallel measures how many containers a second can be attached and detached. It attaches all
// containers of a subject, then detaches all; subjects do not overlap.
func parallel(l *lab) []line {
	containers, err := newAttachments("parallel", 0, l.crowd(many))
	if err != nil {
		return []line{{What: "parallel", Unit: "/s", Error: err.Error()}}
	}
	exec := l.throughputs("parallel-exec", l.ours, false, containers)
	cniExec := l.throughputs("parallel-cni-exec", l.ours, true, containers)
	var reference map[string]throughput
	if l.reference != "" {
		reference = l.throughputs("parallel-reference", l.reference, false, containers)
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

// A throughput is a number of calls a second, and the errors of failed calls.
type throughput struct {
	each float64
	errs []error
}

// compare compares throughputs. A failed call of ours is an error, one of the reference a note.
func compare(what string, ours, reference throughput, bar float64) line {
	l := line{What: what, Unit: "/s", Ours: figure{Median: ours.each}, Other: figure{Median: reference.each}, Bar: bar}
	l.Ratio = ratio(ours.each, reference.each)
	if n := len(ours.errs); n > 0 {
		l.Error = fmt.Sprintf("%d failed: %v", n, ours.errs[0])
	}
	if n := len(reference.errs); n > 0 {
		l.Note = fmt.Sprintf("reference: %d failed: %v", n, reference.errs[0])
	}
	return l
}

// throughputs attaches and detaches all containers on a new host, and returns the figures by verb.
func (l *lab) throughputs(name, plugins string, cniExec bool, containers []attachment) map[string]throughput {
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

// scale measures the 500th container against the 1st, in the same rounds. Nothing else changes on
// the two hosts meanwhile.
func scale(l *lab) []line {
	first, err := l.contenders("first", 0)
	if err != nil {
		return []line{{What: "1st container", Unit: "ms", Error: err.Error()}}
	}
	last, err := l.contenders("last", l.crowd(filled))
	if err != nil {
		return []line{{What: "many containers", Unit: "ms", Error: err.Error()}}
	}
	for i := range last {
		last[i].name += " last"
	}
	r := l.interleave(l.rounds(10), append(first, last...)...)
	var lines []line
	for _, verb := range verbs {
		lines = append(lines, better(verb+", cni-exec", r.of(verb, "cni-exec last"), r.of(verb, "reference last"), 0))
	}
	for _, who := range []string{"exec", "cni-exec", "reference"} {
		for _, verb := range []string{"ADD", "DEL"} {
			bar := barScale
			if who == "reference" {
				bar = 0
			}
			if at := r.of(verb, who+" last"); at.took != nil {
				lines = append(lines, within(verb+", "+who+", to the 1st", at, r.of(verb, who).milliseconds(), bar))
			}
		}
	}
	return lines
}
