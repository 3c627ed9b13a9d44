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
	cases string // pattern for path.Match
	line  *regexp.Regexp

	used, unsure bool
}

// A Difference is a deliberate one: its reason, and where it occurs.
type Difference struct {
	ID, Reason string
	Patterns   []*Pattern
}

// Differences is the list of a file such as
//
//	addresses: the host-side veth keeps the kernel's queue length
//	  bridge/* : ^[-+] ADD host qdisc veth#
//
// A pattern matches a case's name and a line of the diff, with its mark. Lines that begin with # are
// comments.
type Differences []*Difference

// LoadDifferences reads the list. It refuses a pattern that matches every line, since that would
// hide later differences.
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

// Explain returns the IDs of the deliberate differences in a case's diff, and the other lines.
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
			used[d.ID] = false // a name may occur several times in the list
		}
	}
	return ids, open
}

// NotRun excuses the patterns of a case that was not run.
func (list Differences) NotRun(name string) {
	for _, d := range list {
		for _, p := range d.Patterns {
			p.unsure = p.unsure || p.about(name)
		}
	}
}

// Unused returns the patterns that matched no line, except those that a skipped case may need.
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

// about reports whether a pattern matches a case's name.
func (p *Pattern) about(name string) bool {
	ok, _ := path.Match(p.cases, name)
	return ok || p.cases == "*"
}
