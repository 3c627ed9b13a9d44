package twin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// compare returns a diff of lines, sorted by their text without the mark. A line that occurs twice
// on one side counts as a difference.
func compare(mark string, a, b []string) (diff []string) {
	a, b = fold(a, b), fold(b, a)
	for l := range strings.SplitSeq(kerneltest.Diff(strings.Join(numbered(a), "\n"), strings.Join(numbered(b), "\n")), "\n") {
		if l != "" {
			diff = append(diff, mark+l)
		}
	}
	slices.SortStableFunc(diff, func(a, b string) int { return strings.Compare(a[len(mark)+1:], b[len(mark)+1:]) })
	return diff
}

// fold replaces all lines about a link or a result that the other side lacks by one line.
func fold(lines, other []string) (out []string) {
	theirs := map[string]bool{}
	for _, l := range other {
		theirs[subject(l)] = true
	}
	said := map[string]bool{}
	for _, l := range lines {
		s := subject(l)
		switch {
		case s == "" || theirs[s]:
			out = append(out, l)
		case !said[s]:
			said[s] = true
			out = append(out, s)
		}
	}
	return out
}

// subject returns the link or the result that a line is about, or "". The words of a line are the
// point, the place, the kind and the name.
func subject(line string) string {
	w := strings.SplitN(strings.TrimPrefix(line, "first "), " ", 5)
	if len(w) < 4 {
		return ""
	}
	switch w[2] {
	case "link", "qdisc":
		return strings.Join([]string{w[0], w[1], "link", w[3]}, " ")
	case "result":
		return strings.Join(w[:3], " ")
	case "sysctl":
		if parts := strings.Split(w[3], "/"); len(parts) > 4 && parts[3] != "all" {
			return strings.Join([]string{w[0], w[1], "link", parts[3]}, " ")
		}
	}
	return ""
}

// numbered makes equal lines distinct by a number.
func numbered(lines []string) []string {
	count := map[string]int{}
	out := slices.Clone(lines)
	for i, l := range lines {
		count[l]++
		if count[l] > 1 {
			out[i] = fmt.Sprintf("%s (%d)", l, count[l])
		}
	}
	return out
}
