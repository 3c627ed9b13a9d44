package twin

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// An Answer is what the reference made of a case.
type Answer struct {
	Plan  string   // hash of the case; see [Case.Hash]
	Linux string   // version of the kernel
	Lacks string   // option that this kernel lacks, so that the case could not run
	Lines []string // see changes
}

// A Recording has the answers of a version of the reference, by case name.
type Recording struct {
	Version string
	Answers map[string]Answer
}

// recorded is the directory of the recording below that of the corpus, with a file for each of the
// corpus'. Its format is, with lines that no longer hold after a "-":
//
//	reference v1.9.1
//
//	-- title --
//	plan 0123456789ab, Linux 6.18
//	ADD host
//	  link br0 flags=…
//	  - sysctl net/ipv4/ip_forward=0
//
// or "plan 0123456789ab, Linux 6.18 lacks CONFIG_DUMMY".
const recorded = "recorded"

// Hash returns a hash of what determines the reference's answer, without its version.
func (c *Case) Hash() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(c.Name+"\n"+c.text)))[:12]
}

// states are the points of a run at which the state is recorded, and points are all.
var (
	states = []string{"ADD ", "first DEL ", "DEL "}
	points = []string{"ADD ", "CHECK ", "first DEL ", "DEL "}
)

// at returns the lines of a point without it and without the rule set, and whether it has a state.
func at(lines []string, point string) (list []string, state bool) {
	for _, l := range pick(lines, false, point) {
		list = append(list, strings.TrimPrefix(l, point))
	}
	return list, slices.ContainsFunc(list, func(l string) bool { return strings.HasPrefix(l, "host link lo ") })
}

// changes returns the lines of a run that did not hold before the first verb, and "- " with those
// that no longer held. So the recording has nothing of what a kernel has by itself.
func changes(lines []string) (list []string) {
	before, _ := at(lines, "BEFORE ")
	for _, point := range points {
		now, state := at(lines, point)
		var gone []string
		if state {
			gone = slices.Clone(before)
		}
		now = slices.DeleteFunc(now, func(l string) bool {
			i := slices.Index(gone, l)
			if i >= 0 {
				gone = slices.Delete(gone, i, i+1)
			}
			return i >= 0
		})
		for _, l := range slices.Sorted(slices.Values(slices.Concat(now, gone))) {
			if i := slices.Index(gone, l); i >= 0 {
				gone = slices.Delete(gone, i, i+1)
				l = "- " + point + l
			} else {
				l = point + l
			}
			list = append(list, l)
		}
	}
	return list
}

// apply returns the lines that a run would have had with the changes, on the host of another run.
func apply(changes, other []string) (list []string) {
	before, _ := at(other, "BEFORE ")
	for _, point := range states {
		if _, state := at(other, point); state {
			for _, l := range before {
				list = append(list, point+l)
			}
		}
	}
	for _, l := range changes {
		if gone, ok := strings.CutPrefix(l, "- "); !ok {
			list = append(list, l)
		} else if i := slices.Index(list, gone); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

// heading matches a line's point and the place, if it has one.
var heading = regexp.MustCompile(`^(- )?((first )?[A-Z]+( host| ctr\d+)?) `)

// ReadRecording reads the recording beside a corpus. A missing one is empty.
func ReadRecording(dir string) (*Recording, error) {
	files, err := filepath.Glob(filepath.Join(dir, recorded, "*.txt"))
	if err != nil {
		return nil, err
	}
	r := &Recording{Answers: map[string]Answer{}}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		head, rest, _ := strings.Cut(string(b), "\n")
		version, ok := strings.CutPrefix(head, "reference ")
		if !ok || r.Version != "" && r.Version != version {
			return nil, fmt.Errorf("%s:1: %q after %q", file, head, r.Version)
		}
		r.Version = version
		for _, part := range strings.Split(rest, "\n-- ")[1:] {
			title, body, _ := strings.Cut(part, " --\n")
			answer, err := parseAnswer(body)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, title, err)
			}
			r.Answers[strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+title] = answer
		}
	}
	return r, nil
}

// planLine is the first line of an answer.
var planLine = regexp.MustCompile(`^plan ([0-9a-f]{12}), Linux (\S+)(?: lacks (\S+))?$`)

func parseAnswer(text string) (a Answer, err error) {
	head, body, _ := strings.Cut(text, "\n")
	m := planLine.FindStringSubmatch(head)
	if m == nil {
		return a, fmt.Errorf("%q is no plan", head)
	}
	a.Plan, a.Linux, a.Lacks = m[1], m[2], m[3]
	var place string
	for l := range strings.SplitSeq(strings.TrimSuffix(body, "\n"), "\n") {
		inner, ok := strings.CutPrefix(l, "  ")
		gone, isGone := strings.CutPrefix(inner, "- ")
		switch {
		case !ok:
			place = l
		case isGone:
			a.Lines = append(a.Lines, "- "+place+" "+gone)
		default:
			a.Lines = append(a.Lines, place+" "+inner)
		}
	}
	return a, nil
}

// text is what parseAnswer reads.
func (a Answer) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s, Linux %s", a.Plan, a.Linux)
	if a.Lacks != "" {
		fmt.Fprintf(&b, " lacks %s", a.Lacks)
	}
	var place string
	for _, l := range a.Lines {
		m := heading.FindStringSubmatch(l)
		if m[2] != place {
			place = m[2]
			b.WriteString("\n" + place)
		}
		b.WriteString("\n  " + m[1] + l[len(m[0]):])
	}
	return b.String() + "\n"
}

// Write writes the answers of the cases beside their corpus, in its order, and deletes other files.
func (r *Recording) Write(dir string, cases []Case) error {
	dir = filepath.Join(dir, recorded)
	texts := map[string]string{}
	for _, c := range cases {
		a, ok := r.Answers[c.Name]
		if !ok {
			continue
		}
		group, title, _ := strings.Cut(c.Name, "/")
		if texts[group] == "" {
			texts[group] = "reference " + r.Version + "\n"
		}
		texts[group] += "\n-- " + title + " --\n" + a.text()
	}
	err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755))
	for group, text := range texts {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, group+".txt"), []byte(text), 0o644))
	}
	return err
}

// Stale returns why an answer cannot be compared with, or "".
func (r *Recording) Stale(c *Case) string {
	a, ok := r.Answers[c.Name]
	switch {
	case !ok:
		return "the reference's answer is not recorded"
	case a.Plan != c.Hash():
		return "the case has changed since the reference's answer was recorded"
	}
	return ""
}

// Linux returns the kernel's version, as in "6.18".
func Linux() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return regexp.MustCompile(`^\d+\.\d+`).FindString(unix.ByteSliceToString(u.Release[:]))
}

// Changed compares two answers to the same case.
func Changed(was, is Answer) []string { return compare("", was.Lines, is.Lines) }
