package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// A figure is a measured value. For times it includes the spread, the processor time, the kernel's
// part of that, and the time of an empty Go process.
type figure struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90,omitempty"`
	Min    float64 `json:"min,omitempty"`
	Lower  float64 `json:"lower,omitempty"` // quartile
	Upper  float64 `json:"upper,omitempty"` // quartile
	Max    float64 `json:"max,omitempty"`
	CPU    float64 `json:"cpu,omitempty"`    // mean processor time of the processes
	Kernel float64 `json:"kernel,omitempty"` // mean, the part of CPU in the kernel
	Bare   float64 `json:"bare,omitempty"`   // median of an empty Go process in the same rounds
}

// String returns the median, or "-" for what was not measured.
func (f figure) String() string {
	if f.Median == 0 {
		return "-"
	}
	return short(f.Median)
}

// spread is the text below a time; it is empty for other values.
func (f figure) spread() string {
	if f.Max == 0 {
		return ""
	}
	s := fmt.Sprintf("%s [%s %s] %s", short(f.Min), short(f.Lower), short(f.Upper), short(f.Max))
	if f.CPU > 0 {
		s += fmt.Sprintf(", CPU %s, kernel %s", short(f.CPU), short(f.Kernel))
	}
	return s
}

// short formats v with three digits, or with all digits before the point.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (s series) milliseconds() figure {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	mean := s.mean()
	return figure{
		Median: ms(s.median()), P90: ms(s.quantile(0.9)),
		Min: ms(s.quantile(0)), Lower: ms(s.quantile(0.25)), Upper: ms(s.quantile(0.75)), Max: ms(s.quantile(1)),
		CPU: ms(mean.cpu), Kernel: ms(mean.kernel), Bare: ms(s.bare),
	}
}

// A line is one comparison. Ours is cnibox; Other is the reference plugins, or what What names. The
// JSON file has these fields, so their names must not change.
type line struct {
	Group string  `json:"group"`
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	Ours  figure  `json:"ours"`
	Other figure  `json:"other"`
	Ratio float64 `json:"ratio,omitempty"` // see better and within
	Bar   float64 `json:"bar,omitempty"`   // 0: none
	Most  bool    `json:"most,omitempty"`  // Ratio must be at most Bar, not at least
	Error string  `json:"error,omitempty"` // ours failed
	Note  string  `json:"note,omitempty"`  // for instance, how the reference failed
}

// better compares times with those of the reference. The ratio is how many times faster ours are;
// it must be at least bar.
func better(what string, ours, reference series, bar float64) line {
	l := line{What: what, Unit: "ms", Ours: ours.milliseconds(), Other: reference.milliseconds(), Bar: bar}
	l.Ratio = ratio(l.Other.Median, l.Ours.Median)
	l.fail(ours.err)
	if reference.err != nil {
		l.Ratio, l.Note = 0, "reference: "+reference.err.Error()
	}
	return l
}

// within compares a time with a lower bound. The ratio is how many times as long ours is; it must
// be at most bar.
func within(what string, ours series, base figure, bar float64) line {
	l := line{What: what, Unit: "ms", Ours: ours.milliseconds(), Other: base, Bar: bar, Most: true}
	l.Ratio = ratio(l.Ours.Median, base.Median)
	l.fail(ours.err)
	return l
}

// ratio is 0 when there is nothing to compare with.
func ratio(a, b float64) float64 {
	if a == 0 || b == 0 {
		return 0
	}
	return a / b
}

// fail records an error, if any, and discards the figures.
func (l *line) fail(err error) {
	if err != nil {
		l.Error = err.Error()
	}
}

// verdict is the outcome of a line in a word; a line without a bar has none.
func (l line) verdict() string {
	switch {
	case l.Error != "":
		return "FAILED"
	case l.Bar == 0:
		return ""
	case l.Ratio == 0:
		return "not measured"
	case l.Most && l.Ratio <= l.Bar, !l.Most && l.Ratio >= l.Bar:
		return "ok"
	}
	return "MISSED"
}

// bar formats the limit; it is empty without one.
func (l line) bar() string {
	switch {
	case l.Bar == 0:
		return ""
	case l.Most:
		return "<= " + trim(l.Bar)
	}
	return ">= " + trim(l.Bar)
}

// trim formats v without trailing zeros.
func trim(v float64) string { return fmt.Sprintf("%gx", v) }

// A report is the whole table.
type report struct {
	Machine   machine `json:"machine"`
	Reference string  `json:"reference,omitempty"` // version; empty: not installed
	Quick     bool    `json:"quick"`
	Lines     []line  `json:"lines"`
	begun     time.Time
	last      time.Time // the end of the last group
}

// columns make a line of at most 80 characters.
const columns = "%-30s %13s %13s %6s %7s %s\n"

// writeHead writes what is measured, and on which machine.
func (r *report) writeHead(w io.Writer) {
	r.begun, r.last = time.Now(), time.Now()
	fmt.Fprintf(w, "cnibox bench: %s\n", r.Machine)
	switch {
	case r.Reference == "":
		fmt.Fprintln(w, "Without reference plugins (make bench builds them).")
	default:
		fmt.Fprintf(w, "Reference: containernetworking/plugins %s.\n", r.Reference)
	}
	if r.Quick {
		fmt.Fprintln(w, "QUICK: a few rounds only, the figures are rough.")
	}
	fmt.Fprint(w, "Medians of whole processes. Below each: the least [the quartiles] the most; mean\n"+
		"processor time, and the kernel's part of it; an empty Go process in these rounds.\n\n")
	fmt.Fprintf(w, columns, "", "cnibox", "compared to", "ratio", "bar", "")
}

// writeGroup adds lines to the report and writes them, with the time since the group before.
func (r *report) writeGroup(w io.Writer, g group, lines []line) {
	fmt.Fprintf(w, "\n%s [%.0f s]\n", g.title, time.Since(r.last).Seconds())
	r.last = time.Now()
	for _, l := range lines {
		l.Group = g.name
		r.Lines = append(r.Lines, l)
		ratio := ""
		if l.Ratio != 0 {
			ratio = short(l.Ratio) + "x"
		}
		fmt.Fprintf(w, columns, l.What+", "+l.Unit, l.Ours, l.Other, ratio, l.bar(), l.verdict())
		for _, why := range []string{l.spreadOfOurs(), l.spreadOfOther(), l.Error, l.Note} {
			if why != "" {
				fmt.Fprintf(w, "    %s\n", why)
			}
		}
	}
}

// writeFoot writes the summary.
func (r *report) writeFoot(w io.Writer) {
	bars := 0
	for _, l := range r.Lines {
		if l.Bar != 0 {
			bars++
		}
	}
	fmt.Fprintf(w, "\n%d of %d bars missed, in %.0f s.\n", r.count("MISSED"), bars, time.Since(r.begun).Seconds())
}

// spreadOfOurs is the text below cnibox's figure.
func (l line) spreadOfOurs() string {
	s := l.Ours.spread()
	if s != "" && l.Ours.Bare > 0 {
		s += ", empty Go " + short(l.Ours.Bare)
	}
	return s
}

// spreadOfOther is the text below the other figure.
func (l line) spreadOfOther() string {
	if s := l.Other.spread(); s != "" {
		return "compared to " + s
	}
	return ""
}

// count returns how many lines have that verdict.
func (r *report) count(verdict string) (n int) {
	for _, l := range r.Lines {
		if l.verdict() == verdict {
			n++
		}
	}
	return n
}

// save writes the report as JSON.
func (r *report) save(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
