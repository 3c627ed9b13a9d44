package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A row is one of a table that `make numbers` writes.
type row struct {
	what              string
	ours, theirs      string // as they stand there: 6.3 ms
	oursNum, refsNum  float64
	oursUnit, refUnit string
}

var (
	table  = regexp.MustCompile(`(?s)<!-- bench: \w+ -->(.*?)<!-- bench end -->`)
	figure = regexp.MustCompile(`^([0-9.]+) ?(ms|s|×|MB|MiB)$`)
)

// readTables finds the rows that have figures of both programs.
func readTables(paths []string) (rows []row, err error) {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found := table.FindAllStringSubmatch(string(data), -1)
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no table between <!-- bench: … --> and <!-- bench end -->", path)
		}
		for _, m := range found {
			for line := range strings.Lines(m[1]) {
				cells := strings.Split(line, "|")
				if len(cells) < 5 {
					continue
				}
				r := row{what: strings.ReplaceAll(strings.TrimSpace(cells[1]), "`", ""), ours: strings.TrimSpace(cells[2]), theirs: strings.TrimSpace(cells[3])}
				a, b := figure.FindStringSubmatch(r.ours), figure.FindStringSubmatch(r.theirs)
				if a == nil || b == nil {
					continue
				}
				if r.oursNum, err = strconv.ParseFloat(a[1], 64); err != nil {
					return nil, fmt.Errorf("%s: %q: %w", path, r.ours, err)
				}
				if r.refsNum, err = strconv.ParseFloat(b[1], 64); err != nil {
					return nil, fmt.Errorf("%s: %q: %w", path, r.theirs, err)
				}
				r.oursUnit, r.refUnit = a[2], b[2]
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// A bar is a row of the tables with its name in the chart.
type bar struct{ row, name string }

// charted are the panels of the chart from top to bottom, each with figures of one unit.
var charted = []struct {
	title, unit string
	bars        []bar
}{
	{"bridge, host-local, portmap and tuning: milliseconds, less is better", "ms", []bar{
		{"chain ADD, a process for each plugin", "ADD by plugins"}, {"chain ADD by cni-exec", "ADD by cni-exec"},
		{"chain CHECK by cni-exec", "CHECK by cni-exec"}, {"chain DEL by cni-exec", "DEL by cni-exec"},
	}},
	{"the 500th container: times as long as the first", "×", []bar{
		{"500th ADD by cni-exec against the first", "ADD by cni-exec"}, {"500th DEL by cni-exec against the first", "DEL by cni-exec"},
	}},
}

var (
	ours      = color.RGBA{R: 0x1f, G: 0x6f, B: 0xeb, A: 0xff}
	reference = color.RGBA{R: 0xb0, G: 0xb8, B: 0xc1, A: 0xff}
)

// drawChart writes bars of both programs for each charted row, with the figures as the tables have them.
func drawChart(w io.Writer, rows []row) error {
	byName := map[string]row{}
	for _, r := range rows {
		byName[r.what] = r
	}
	const width, perRow, head, space = 20 * vg.Centimeter, 1.2 * vg.Centimeter, 1.9 * vg.Centimeter, 8
	total := vg.Length(0)
	for _, panel := range charted {
		total += head + perRow*vg.Length(len(panel.bars))
	}
	c := vgsvg.New(width, total)
	c.SetColor(color.White)
	c.Fill(vg.Rectangle{Max: vg.Point{X: width, Y: total}}.Path())
	top := total
	for i, panel := range charted {
		var chosen []row
		for _, b := range panel.bars {
			r, ok := byName[b.row]
			if !ok || r.oursUnit != panel.unit || r.refUnit != panel.unit {
				return fmt.Errorf("the tables have no row %q with two figures in %s", b.row, panel.unit)
			}
			r.what = b.name
			chosen = append(chosen, r)
		}
		p, err := bars(panel.title, chosen, i == 0)
		if err != nil {
			return err
		}
		height := head + perRow*vg.Length(len(chosen))
		p.Draw(draw.Canvas{Canvas: c, Rectangle: vg.Rectangle{Min: vg.Point{X: space, Y: top - height}, Max: vg.Point{X: width, Y: top - space}}})
		top -= height
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	// A reader may have other fonts than those that were measured here.
	_, err := w.Write(fontFamily.ReplaceAll(b.Bytes(), []byte("font-family:sans-serif;")))
	return err
}

var fontFamily = regexp.MustCompile(`font-family:[^;"]*;`)

// bars is one panel; the first row is at the top.
func bars(title string, rows []row, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, 12
	p.Title.Padding = 6
	n := len(rows)
	const thick = 0.42 * vg.Centimeter
	names := make([]string, n)
	for _, series := range []struct {
		name  string
		of    func(row) (float64, string)
		color color.Color
		shift vg.Length
	}{
		{"cnibox", func(r row) (float64, string) { return r.oursNum, r.ours }, ours, thick / 2},
		{"reference plugins", func(r row) (float64, string) { return r.refsNum, r.theirs }, reference, -thick / 2},
	} {
		values := make(plotter.Values, n)
		labels := plotter.XYLabels{XYs: make(plotter.XYs, n), Labels: make([]string, n)}
		for i, r := range rows {
			at := n - 1 - i
			names[at] = r.what
			values[at], labels.Labels[at] = series.of(r)
			labels.XYs[at] = plotter.XY{X: values[at], Y: float64(at)}
		}
		b, err := plotter.NewBarChart(values, thick)
		if err != nil {
			return nil, err
		}
		b.Horizontal, b.Color, b.Offset, b.LineStyle.Width = true, series.color, series.shift, 0
		l, err := plotter.NewLabels(labels)
		if err != nil {
			return nil, err
		}
		for i := range l.TextStyle {
			l.TextStyle[i].Font.Size, l.TextStyle[i].YAlign = 10, text.YCenter
		}
		l.Offset = vg.Point{X: 4, Y: series.shift}
		p.Add(b, l)
		if legend {
			p.Legend.Add(series.name, b)
		}
		for _, v := range values {
			p.X.Max = max(p.X.Max, v*1.12)
		}
	}
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, 10
	p.Legend.Left, p.Legend.Padding, p.Legend.XOffs = true, 3, 11*vg.Centimeter
	p.X.Min, p.Y.Min, p.Y.Max = 0, -0.6, float64(n)-0.4
	p.NominalY(names...)
	p.Y.Padding = 12
	p.Y.Tick.Label.Font.Size, p.X.Tick.Label.Font.Size = 10, 9
	return p, nil
}
