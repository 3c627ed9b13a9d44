package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A tableRow is a line of the report and its name in a table.
type tableRow struct{ name, group, what, faster string }

// ratioRows are the rows of the README's table.
var ratioRows = []tableRow{
	{"all plugins, and the runtime, on disk", "size", "all plugins of the reference", " smaller"},
	{"ADD of bridge, portmap, firewall, bandwidth and tuning, as one folded list", "five", "ADD, folded", " faster"},
	{"its CHECK", "five", "CHECK, folded", " faster"},
	{"its DEL", "five", "DEL, folded", " faster"},
	{"100 containers, 16 at a time, by `cni-exec`", "parallel", "ADD, cni-exec", " a second"},
}

// usersRows are the rows of the first table of docs/numbers.md.
var usersRows = []tableRow{
	{"all plugins and `cni-exec` on disk", "size", "all plugins of the reference", " smaller"},
	{"peak memory of a call, at most", "memory", "the most, of the limit", ""},
	{"the slowest VERSION, over `/bin/true`", "start", "slowest, over /bin/true", ""},
	{"chain ADD, a process for each plugin", "chain", "ADD, exec'd per applet", " faster"},
	{"chain ADD by `cni-exec`", "chain", "ADD, cni-exec", " faster"},
	{"chain CHECK by `cni-exec`", "chain", "CHECK, cni-exec", " faster"},
	{"chain DEL by `cni-exec`", "chain", "DEL, cni-exec", " faster"},
	{"100 ADDs, 16 at a time, by `cni-exec`", "parallel", "ADD, cni-exec", " more"},
	{"list of five, folded: ADD", "five", "ADD, folded", " faster"},
	{"list of five, folded: CHECK", "five", "CHECK, folded", " faster"},
	{"list of five, folded: DEL", "five", "DEL, folded", " faster"},
	{"500th ADD by `cni-exec`, to the first", "scale", "ADD, cni-exec, to the 1st", ""},
	{"`cni-exec gc` of 1,000 that are gone", "crowd", "gc of 1000 whose namespace is gone, of the limit", ""},
}

// blocks are the tables that files may contain, between `<!-- bench: NAME -->` and `<!-- bench end
// -->`.
var blocks = map[string]func(*report) (string, error){"ratios": ratiosTable, "users": usersTable, "all": allTable, "base": baseTable}

// errNotMeasured is returned for a table whose rows are not in the report; the file keeps the old
// one.
var errNotMeasured = errors.New("not measured")

// writeTables rewrites the tables of a comma-separated list of files from a report in JSON.
func writeTables(from, files string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if r.Quick || r.count("FAILED") > 0 {
		return fmt.Errorf("%s is of a run with -quick, or with failures: its figures stand for nothing", from)
	}
	for file := range strings.SplitSeq(files, ",") {
		old, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text, err := r.fillBlocks(string(old))
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// fillBlocks replaces the tables in a text.
func (r *report) fillBlocks(text string) (string, error) {
	const begin, end = "<!-- bench: ", "<!-- bench end -->"
	var out strings.Builder
	for {
		head, rest, ok := strings.Cut(text, begin)
		out.WriteString(head)
		if !ok {
			return out.String(), nil
		}
		name, rest, _ := strings.Cut(rest, " -->\n")
		table, rest, ok := strings.Cut(rest, end)
		write := blocks[name]
		if !ok || write == nil {
			return "", fmt.Errorf("the block %q of bench has no end, or is unknown", name)
		}
		made, err := write(r)
		switch {
		case err == nil:
			table = made
		case !errors.Is(err, errNotMeasured):
			return "", err
		}
		out.WriteString(begin + name + " -->\n" + table + end)
		text = rest
	}
}

// find returns a line of the report.
func (r *report) find(group, what string) (line, bool) {
	for _, l := range r.Lines {
		if l.Group == group && l.What == what {
			return l, true
		}
	}
	return line{}, false
}

// lines returns the lines of the report for rows.
func (r *report) lines(rows []tableRow) ([]line, error) {
	if _, ok := r.find(rows[0].group, rows[0].what); !ok {
		return nil, errNotMeasured
	}
	list := make([]line, len(rows))
	for i, row := range rows {
		l, ok := r.find(row.group, row.what)
		if !ok {
			return nil, fmt.Errorf("the report has no %q in %s: all groups must be measured", row.what, row.group)
		}
		list[i] = l
	}
	return list, nil
}

// ratiosTable is the table of the README.
func ratiosTable(r *report) (string, error) {
	list, err := r.lines(ratioRows)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Against containernetworking/plugins %s, medians of one run on %s.\n\n| | |\n|---|---|\n", r.Reference, r.Machine)
	for i, l := range list {
		fmt.Fprintf(&b, "| %s | %s×%s |\n", ratioRows[i].name, short(l.Ratio), ratioRows[i].faster)
	}
	return b.String(), nil
}

// usersTable is the first table of docs/numbers.md. A missed target is bold.
func usersTable(r *report) (string, error) {
	list, err := r.lines(usersRows)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Against containernetworking/plugins %s: %s.\n\n", r.Reference, r.Machine)
	b.WriteString("| | cnibox | quartiles | an empty Go process | reference | | target |\n|---|--:|---|--:|--:|---|---|\n")
	for i, row := range usersRows {
		l := list[i]
		compared := l.Ratio != 0 && !l.Most
		reference, factor := "", ""
		if compared {
			reference, factor = withUnit(l.Other, l.Unit), short(l.Ratio)+"×"+row.faster
		} else if l.Other.Max != 0 { // a time against another of ours
			factor = short(l.Ratio) + "×"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n",
			row.name, withUnit(l.Ours, l.Unit), quartiles(l.Ours), orNothing(l.Ours.Bare), reference, factor, l.target())
	}
	return b.String(), nil
}

// withUnit formats the median and its unit; it is empty if nothing was measured.
func withUnit(f figure, unit string) string {
	if f.Median == 0 {
		return ""
	}
	return short(f.Median) + " " + unit
}

// quartiles is empty for values without a spread.
func quartiles(f figure) string {
	if f.Max == 0 {
		return ""
	}
	return short(f.Lower) + " to " + short(f.Upper)
}

// orNothing is empty if nothing was measured.
func orNothing(v float64) string {
	if v == 0 {
		return ""
	}
	return short(v)
}

// target formats the bar as a limit in its unit or as a factor; bold if it is missed.
func (l line) target() string {
	t := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSuffix(l.bar(), "x"), ">= ", ""), "<= ", "at most ")
	switch {
	case t == "":
		return ""
	case l.Bar == 1 && l.Most:
		t = withUnit(l.Other, l.Unit)
	default:
		t += "×"
	}
	if l.verdict() == "MISSED" {
		return "**" + t + "**"
	}
	return t
}

// allTable has all groups, with the spread of each figure and the time of an empty Go process.
func allTable(r *report) (string, error) {
	return r.table(func(group string) bool { return group != "base" }, "Against containernetworking/plugins "+r.Reference)
}

// baseTable has the groups of a run against an earlier revision.
func baseTable(r *report) (string, error) {
	return r.table(func(group string) bool { return group == "base" }, "Against the earlier revision")
}

// table has a row for each line of some groups.
func (r *report) table(of func(group string) bool, against string) (string, error) {
	titles := map[string]string{}
	for _, g := range groups {
		titles[g.name] = g.title
	}
	var b strings.Builder
	group := ""
	for _, l := range r.Lines {
		if !of(l.Group) {
			continue
		}
		if group == "" {
			fmt.Fprintf(&b, "%s: %s.\n\n", against, r.Machine)
			b.WriteString("| | | cnibox | least, quartiles, most | CPU | kernel | empty Go | compared to | | target |\n|---|---|--:|---|--:|--:|--:|--:|--:|---|\n")
		}
		if l.Group != group {
			group = l.Group
			fmt.Fprintf(&b, "| **%s** | | | | | | | | | |\n", titles[group])
		}
		spread, factor := "", ""
		if l.Ours.Max != 0 {
			spread = fmt.Sprintf("%s, %s, %s", short(l.Ours.Min), quartiles(l.Ours), short(l.Ours.Max))
		}
		if l.Ratio != 0 {
			factor = short(l.Ratio) + "×"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", l.What, l.Unit, l.Ours, spread,
			orNothing(l.Ours.CPU), orNothing(l.Ours.Kernel), orNothing(l.Ours.Bare), l.Other, factor, l.target())
	}
	if group == "" {
		return "", errNotMeasured
	}
	return b.String(), nil
}
