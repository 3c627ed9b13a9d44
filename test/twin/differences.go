package twin

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
)

// A Pattern allows lines of the diff of some cases.
type Pattern struct {
	cases string // as path.Match has it
	line  *regexp.Regexp

	used, unsure bool
}

// A Difference is one that is deliberate: its reason, and where it shows.
type Difference struct {
	ID, Reason string
	Patterns   []*Pattern
}

// Differences is the list of a file such as
//
//	addresses: the host end of a pair keeps the kernel's queue length
//	  bridge/* : ^[-+] ADD host qdisc veth#
//
// Patterns are of a case's name and of a line of the diff, with its mark. Lines
// that begin with # are comments.
type Differences []*Difference

// LoadDifferences reads the list. A pattern for every line is refused, since it would hide
// what comes later.
func LoadDifferences(file string) (list Differences, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for i, l := range strings.Split(string(b), "\n") {
		if strings.TrimSpace(l) == "" || strings.HasPrefix(l, "#") {
			continue
		}
		inner := strings.HasPrefix(l, "  ")
		sep := ": "
		if inner {
			sep = " : "
		}
		left, right, ok := strings.Cut(l, sep)
		if !ok || inner && len(list) == 0 {
			return nil, fmt.Errorf("%s:%d: %q", file, i+1, l)
		}
		if !inner {
			list = append(list, &Difference{ID: left, Reason: right})
			continue
		}
		re, err := regexp.Compile(right)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		if re.MatchString("+ ") || re.MatchString("- ") {
			return nil, fmt.Errorf("%s:%d: %q excuses every line", file, i+1, right)
		}
		d := list[len(list)-1]
		d.Patterns = append(d.Patterns, &Pattern{cases: strings.TrimSpace(left), line: re})
	}
	return list, nil
}

// Explain sorts the lines of a case's diff: the reasons for those that are
// deliberate, and the others.
func (list Differences) Explain(name string, lines []string) (ids, open []string) {
	used := map[string]bool{}
	for _, l := range lines {
		known := false
		for _, d := range list {
			for _, p := range d.Patterns {
				if p.about(name) && p.line.MatchString(l) {
					p.used, used[d.ID], known = true, true, true
				}
			}
		}
		if !known {
			open = append(open, l)
		}
	}
	for _, d := range list {
		if used[d.ID] {
			ids = append(ids, d.ID)
			used[d.ID] = false // one name may have several places in the list
		}
	}
	return ids, open
}

// NotRun says that a case was not run: what may be for it is not unused.
func (list Differences) NotRun(name string) {
	for _, d := range list {
		for _, p := range d.Patterns {
			p.unsure = p.unsure || p.about(name)
		}
	}
}

// Unused lists the patterns that no line needed.
// Those that a skipped case may need do not count.
func (list Differences) Unused() (unused []string) {
	for _, d := range list {
		for _, p := range d.Patterns {
			if !p.used && !p.unsure {
				unused = append(unused, fmt.Sprintf("%s: %s : %s", d.ID, p.cases, p.line))
			}
		}
	}
	return unused
}

// about reports whether a pattern is for a case.
func (p *Pattern) about(name string) bool {
	ok, _ := path.Match(p.cases, name)
	return ok || p.cases == "*"
}
