package twin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cnibox/cnibox/internal/netns"
)

// A Lab has the two directories of plugins, and a directory for files of the runs.
type Lab struct {
	Reference, Ours, Dir string

	rules bool // record rule sets as well

	// Serve starts a DHCP server on srv0 of a host.
	Serve func(host *netns.NS)
}

// A step is a verb for all containers by the plugins of a directory. END is not a verb: it deletes
// the containers' namespaces; nor is BEFORE, which does nothing. The state after the step is recorded
// under the point's name, unless that is empty.
type step struct{ verb, plugins, point string }

// own is what is compared, and recorded.
func own(plugins string) []step {
	return []step{{"BEFORE", "", "BEFORE"}, {"ADD", plugins, "ADD"}, {"CHECK", plugins, ""}, {"DEL", plugins, "DEL"}}
}

// Ask runs a case with the reference.
func (lab Lab) Ask(c *Case) (Answer, error) {
	lines, _, err := lab.runUntilUp(c, "ask", own(lab.Reference))
	return answer(c, lines), err
}

// answer returns the reference's answer from the lines of a run on this machine.
func answer(c *Case, lines []string) Answer {
	return Answer{Plan: c.Hash(), Linux: Linux(), Lines: changes(lines)}
}

// Compare runs a case with ours, and returns the lines that differ from the reference's answer, "-"
// for the reference and "+" for ours, and the messages of plugins that failed.
func (lab Lab) Compare(c *Case, a Answer) (diff, said []string, err error) {
	lines, said, err := lab.run(c, "ours", own(lab.Ours))
	return differ(a, lines), said, err
}

// differ compares an answer with the lines of a run of ours.
func differ(a Answer, lines []string) []string {
	return compare("", apply(a.Lines, lines), slices.DeleteFunc(pick(lines, false, ""), func(l string) bool { return strings.HasPrefix(l, "BEFORE ") }))
}

// Live runs a case with the reference and with ours, and returns what [Lab.Ask] and [Lab.Compare] do.
//
// If the case asks for it, live replacement is tested: ours checks and detaches what the reference
// attached, which must leave no more lines than the reference itself ("replace: "); and the reference
// detaches what ours attached ("return: " for what it leaves), and then ours does ("again: "). After
// the namespaces are gone, our DEL ("gone: ") and our GC alone ("gc: ") delete what the reference
// attached, and must leave no more lines on the host than the reference's DEL with the namespaces.
func (lab Lab) Live(c *Case) (a Answer, diff, said []string, err error) {
	lab.rules = c.Replace
	plans := [][]step{own(lab.Reference), own(lab.Ours)}
	if c.Replace {
		plans = append(plans,
			[]step{{"ADD", lab.Reference, ""}, {"CHECK", lab.Ours, ""}, {"DEL", lab.Ours, "DEL"}},
			[]step{{"ADD", lab.Ours, ""}, {"DEL", lab.Reference, "DEL"}, {"DEL", lab.Ours, "AGAIN"}},
			[]step{{"ADD", lab.Reference, ""}, {"END", "", ""}, {"DEL", lab.Ours, "DEL"}},
			[]step{{"ADD", lab.Reference, ""}, {"END", "", ""}, {"GC", lab.Ours, "DEL"}})
	}
	seen, notes, errs := make([][]string, len(plans)), make([][]string, len(plans)), make([]error, len(plans))
	var all sync.WaitGroup
	for i, plan := range plans {
		all.Go(func() { seen[i], notes[i], errs[i] = lab.runUntilUp(c, fmt.Sprint(i), plan) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return a, nil, nil, err
	}
	a = answer(c, seen[0])
	diff = differ(a, seen[1])
	if c.Replace {
		left := func(plan int, point string) []string { return pick(seen[plan], true, point+" ") }
		again := left(3, "AGAIN")
		for i := range again {
			again[i] = "DEL " + strings.TrimPrefix(again[i], "AGAIN ")
		}
		diff = slices.Concat(diff, added("replace: ", left(0, "DEL"), left(2, "DEL")), added("replace: ", left(0, "CHECK"), left(2, "CHECK")),
			added("return: ", left(1, "DEL"), left(3, "DEL")), added("again: ", left(1, "DEL"), again),
			added("gone: ", left(0, "DEL"), left(4, "DEL")), added("gc: ", left(0, "DEL"), left(5, "DEL")))
	}
	for i, list := range notes {
		for _, n := range list {
			said = append(said, fmt.Sprintf("plan %d: %s", i, n))
		}
	}
	return a, diff, said, nil
}

// notUp begins an error of the reference's bridge, which waits for 2.55 s at most until the kernel has
// reported that the new port is up: where other programs use the processors, that may take longer.
const notUp = "bridge port in error state"

// runUntilUp runs the steps again when the reference gave up waiting for a port, a few times at most.
func (lab Lab) runUntilUp(c *Case, name string, plan []step) (seen, said []string, err error) {
	for range 4 {
		seen, said, err = lab.run(c, name, plan)
		gaveUp := func(s string) bool { return strings.Contains(s, notUp) }
		if err != nil || !slices.ContainsFunc(said, gaveUp) {
			break
		}
		name += "again"
	}
	return seen, said, err
}

// run runs the steps in their own world.
func (lab Lab) run(c *Case, name string, plan []step) (seen, said []string, err error) {
	dir := filepath.Join(lab.Dir, strings.ReplaceAll(strings.ReplaceAll(c.Name, "/", "-"), " ", "_"), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	w, err := newWorld(c, dir)
	if err != nil {
		return nil, nil, err
	}
	defer w.close()
	w.ruled = lab.rules
	if c.DHCP {
		lab.Serve(w.host)
	}
	for _, s := range plan {
		if err := w.step(s); err != nil {
			return nil, nil, err
		}
	}
	return w.lines, w.said, nil
}

func (w *world) step(s step) error {
	if s.plugins != "" {
		if err := w.startDaemon(s.plugins); err != nil {
			return err
		}
	}
	switch s.verb {
	case "BEFORE":
	case "END":
		return w.end()
	case "GC":
		if err := w.each("GC", s.point, s.plugins, &container{id: "all"}, w.c.Plugins); err != nil {
			return err
		}
	default:
		for i, cont := range w.conts {
			if err := w.do(s, cont); err != nil {
				return err
			}
			// record how the first container is detached while the others stay
			if s.verb == "DEL" && s.point != "" && i < len(w.conts)-1 && i == 0 {
				if err := w.state("first " + s.point); err != nil {
					return err
				}
			}
		}
	}
	if s.point == "" {
		return nil
	}
	return errors.Join(w.state(s.point), w.rules(s.point))
}

// do runs a step for one container.
func (w *world) do(s step, c *container) error {
	switch s.verb {
	case "ADD":
		return w.add(s.plugins, c)
	case "CHECK":
		return w.check(s.plugins, c)
	}
	return w.del(s.plugins, s.point, c)
}

// rules records the rule set, each line with its table and chain. It only matters if an attachment
// is deleted by the other side's plugins: the rules of the two differ by design.
func (w *world) rules(point string) error {
	if !w.ruled {
		return nil
	}
	out, err := tool(w.host, "", "nft", "-s", "list", "ruleset")
	if err != nil {
		return err
	}
	var in []string
	for l := range strings.SplitSeq(string(out), "\n") {
		l = strings.TrimSpace(l)
		switch {
		case l == "}":
			in = in[:len(in)-1]
		case strings.HasSuffix(l, "{"):
			in = append(in, strings.TrimSuffix(l, " {"))
			w.record("%s nft %s", point, strings.Join(in, " / "))
		case l != "":
			w.record("%s nft %s: %s", point, strings.Join(in, " / "), l)
		}
	}
	return nil
}

// pick returns the lines with a prefix, with or without those of the rule set.
func pick(lines []string, rules bool, begin string) (list []string) {
	for _, l := range lines {
		_, rest, _ := strings.Cut(l, " ")
		if strings.HasPrefix(l, begin) && (rules || !strings.HasPrefix(rest, "nft ")) {
			list = append(list, l)
		}
	}
	return list
}

// added returns the lines of b that a lacks, without successes.
func added(mark string, a, b []string) []string {
	return slices.DeleteFunc(compare(mark, a, b), func(l string) bool {
		return strings.HasPrefix(l, mark+"- ") || strings.HasSuffix(l, " succeeds")
	})
}
