package main

import (
	"fmt"
	"time"
)

// Limits of the chain: how many times faster than the reference it must be, and how many times as
// long as the floor it may take.
const (
	barFoldAdd    = 10
	barFoldCheck  = 7
	barFoldDel    = 7.5
	barFiveAdd    = 13
	barFiveCheck  = 10
	barFiveDel    = 8
	barExecAdd    = 5.5
	barCniExecAdd = 10
	barExecCheck  = 3.5
	barCheck      = 7
	barExecDel    = 5.5
	barDel        = 7.5
	barFloorAdd   = 2.5
	barFloorDel   = 1.4
)

// chain measures one container on a host that has no other. The floor and an empty Go process run
// in the same rounds, so that load on the machine affects all of them alike.
func chain(l *lab) []line {
	r, err := l.chainResults()
	if err != nil {
		return []line{{What: "chain", Unit: "ms", Error: err.Error()}}
	}
	reference := func(verb string) series { return r.of(verb, "reference") }
	start := figure{Median: r.of("ADD", "floor").milliseconds().Median + r.of("start", "bare").milliseconds().Median}
	lines := []line{
		better("ADD, exec'd per applet", r.of("ADD", "exec"), reference("ADD"), barExecAdd),
		better("ADD, cni-exec", r.of("ADD", "cni-exec"), reference("ADD"), barCniExecAdd),
		better("ADD, folded", r.of("ADD", "folded"), reference("ADD"), barFoldAdd),
		better("CHECK, exec'd per applet", r.of("CHECK", "exec"), reference("CHECK"), barExecCheck),
		better("CHECK, cni-exec", r.of("CHECK", "cni-exec"), reference("CHECK"), barCheck),
		better("CHECK, folded", r.of("CHECK", "folded"), reference("CHECK"), barFoldCheck),
		better("DEL, exec'd per applet", r.of("DEL", "exec"), reference("DEL"), barExecDel),
		better("DEL, cni-exec", r.of("DEL", "cni-exec"), reference("DEL"), barDel),
		better("DEL, folded", r.of("DEL", "folded"), reference("DEL"), barFoldDel),
		within("ADD, to floor + Go start", r.of("ADD", "cni-exec"), start, barFloorAdd),
		within("DEL, to RTM_DELLINK", r.of("DEL", "cni-exec"), r.of("DEL", "floor").milliseconds(), barFloorDel),
	}
	if err := r.of("ADD", "floor").err; err != nil {
		lines = append(lines, line{What: "the kernel floor", Unit: "ms", Error: err.Error()})
	}
	return lines
}

// five measures the list of five plugins of Kubernetes' nodes.
func five(l *lab) []line {
	subjects, err := l.fiveSubjects()
	if err != nil {
		return []line{{What: "list of five", Unit: "ms", Error: err.Error()}}
	}
	r := l.interleave(l.rounds(30), subjects...)
	var lines []line
	for i, bar := range []float64{barFiveAdd, barFiveCheck, barFiveDel} {
		verb := verbs[i]
		lines = append(lines,
			better(verb+", exec'd per applet", r.of(verb, "exec"), r.of(verb, "reference"), 0),
			better(verb+", folded", r.of(verb, "folded"), r.of(verb, "reference"), bar),
			better(verb+", cni-exec", r.of(verb, "cni-exec"), r.of(verb, "reference"), 0))
	}
	return lines
}

func (l *lab) fiveSubjects() ([]subject, error) {
	pairs, err := l.contendersOf("five", listOfFive(), 0)
	if err != nil {
		return nil, err
	}
	folded, err := l.folded("five-folded", listOfFive())
	return append(pairs, folded), err
}

// folded returns a list as one plugin, on a host of its own.
func (l *lab) folded(name string, list []map[string]any) (subject, error) {
	n, err := l.networkOf(name, l.ours, []map[string]any{foldOf(list)})
	if err != nil {
		return subject{}, err
	}
	a, err := newAttachment(name, 19999)
	return n.life("folded", n.byExec(), a), err
}

func (l *lab) chainResults() (results, error) {
	f, err := l.newFloor()
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	subjects := []subject{f.subject()}
	pairs, err := l.contenders("chain", 0)
	if err != nil {
		return nil, err
	}
	folded, err := l.folded("folded", commonChain())
	if err != nil {
		return nil, err
	}
	subjects = append(subjects, folded)
	return l.interleave(l.rounds(30), append(subjects, pairs...)...), nil
}

// contenders returns the chain by exec and by cni-exec and, where installed, the reference's. Each
// has its own host, to which that many others are attached first.
func (l *lab) contenders(name string, others int) ([]subject, error) {
	return l.contendersOf(name, commonChain(), others)
}

// contendersOf is contenders for a list.
func (l *lab) contendersOf(name string, list []map[string]any, others int) ([]subject, error) {
	ours, err := l.networkOf(name+"-ours", l.ours, list)
	if err != nil {
		return nil, err
	}
	if err := ours.fill(&byCniExec{network: ours}, others); err != nil {
		return nil, err
	}
	a, err := newAttachment(ours.name, 19999)
	if err != nil {
		return nil, err
	}
	subjects := []subject{
		ours.life("exec", ours.byExec(), a),
		ours.life("cni-exec", &byCniExec{network: ours}, a),
	}
	if l.reference == "" {
		return subjects, nil
	}
	theirs, err := l.networkOf(name+"-reference", l.reference, list)
	if err != nil {
		return nil, err
	}
	if err := theirs.fill(theirs.byExec(), others); err != nil {
		return nil, err
	}
	if a, err = newAttachment(theirs.name, 19999); err != nil {
		return nil, err
	}
	return append(subjects, theirs.life("reference", theirs.byExec(), a)), nil
}

// fill attaches containers until there are count of them; they stay attached.
func (n *network) fill(r caller, count int) error {
	others, err := newAttachments(n.name, n.filled, count)
	if err != nil {
		return err
	}
	count, n.filled, n.held = len(others), max(count, n.filled), append(n.held, others...)
	// the first one by itself: two concurrent ADDs of the reference fail when both create its
	// shared chains
	_, errs := n.all(r, "ADD", others[:min(1, count)], 1)
	_, more := n.all(r, "ADD", others[min(1, count):], 2)
	if errs = append(errs, more...); len(errs) > 0 {
		return fmt.Errorf("%d of %d containers of %s: %w", len(errs), count, n.name, errs[0])
	}
	return nil
}

// all calls a verb for many attachments, atATime at once, and returns the total time and the
// errors. Attachments are taken from a queue, so a slow one does not delay the others.
func (n *network) all(r caller, verb string, attachments []attachment, atATime int) (time.Duration, []error) {
	queue := make(chan attachment)
	failures := make(chan []error)
	for range atATime {
		go func() {
			var errs []error
			for a := range queue {
				if _, err := n.timed(r, verb, a); err != nil {
					errs = append(errs, err)
				}
			}
			failures <- errs
		}()
	}
	begin := time.Now()
	for _, a := range attachments {
		queue <- a
	}
	close(queue)
	var errs []error
	for range atATime {
		errs = append(errs, <-failures...)
	}
	return time.Since(begin), errs
}
