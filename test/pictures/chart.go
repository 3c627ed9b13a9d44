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

// A cell is the row and the column of a value in the tables that `make numbers` writes.
type cell struct{ row, column string }

// Columns of the chart's values. The column of ratios has no heading.
const (
	columnOurs   = "cnibox"
	columnTheirs = "reference"
	columnRatio  = ""
)

// A figure is the text of a cell, such as 6.3 ms, and its unit.
type figure struct {
	text, unit string
	value      float64
}

var (
	table  = regexp.MustCompile(`(?s)<!-- bench: \w+ -->(.*?)<!-- bench end -->`)
	number = regexp.MustCompile(`^([0-9.]+) ?(ms|s|×|MB|MiB)(?: faster)?$`)
)

// readTables returns the cells that have a figure with a unit.
func readTables(paths []string) (map[cell]figure, error) {
	figures := map[cell]figure{}
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
			var columns []string
			for line := range strings.Lines(m[1]) {
				cells := strings.Split(strings.TrimSpace(line), "|")
				if len(cells) < 5 {
					continue
				}
				for i := range cells {
					cells[i] = strings.TrimSpace(cells[i])
				}
				if columns == nil {
					columns = cells
					continue
				}
				row := strings.ReplaceAll(cells[1], "`", "")
				for i, text := range cells[2:min(len(cells), len(columns))] {
					f := number.FindStringSubmatch(text)
					if f == nil {
						continue
					}
					value, err := strconv.ParseFloat(f[1], 64)
					if err != nil {
						return nil, fmt.Errorf("%s: %q: %w", path, text, err)
					}
					figures[cell{row, columns[i+2]}] = figure{strings.TrimSuffix(text, " faster"), f[2], value}
				}
			}
		}
	}
	return figures, nil
}

// A bar is a pair of cells and its name in the chart.
type bar struct {
	name         string
	ours, theirs cell
}

// chain returns the bar of a row in the README.
func chain(name, row string) bar {
	return bar{name, cell{row, columnOurs}, cell{row, columnTheirs}}
}

// charted are the panels of the chart from top to bottom; each has one unit.
var charted = []struct {
	title, unit string
	bars        []bar
}{
	{"bridge, host-local, portmap and tuning: milliseconds, less is better", "ms", []bar{
		chain("ADD by plugins", "chain ADD, a process for each plugin"), chain("ADD by cni-exec", "chain ADD by cni-exec"),
		chain("CHECK by cni-exec", "chain CHECK by cni-exec"), chain("DEL by cni-exec", "chain DEL by cni-exec"),
	}},
	{"the 500th container: times as long as the first", "×", []bar{
		{"ADD by cni-exec", cell{"ADD, cni-exec, to the 1st", columnRatio}, cell{"ADD, reference, to the 1st", columnRatio}},
		{"DEL by cni-exec", cell{"DEL, cni-exec, to the 1st", columnRatio}, cell{"DEL, reference, to the 1st", columnRatio}},
	}},
}

// A row is a bar with its figures.
type row struct {
	name         string
	ours, theirs figure
}

var (
	ours      = color.RGBA{R: 0x1f, G: 0x6f, B: 0xeb, A: 0xff}
	reference = color.RGBA{R: 0xb0, G: 0xb8, B: 0xc1, A: 0xff}
)

// drawChart draws a pair of bars for each charted row, with the figures of the tables.
func drawChart(w io.Writer, figures map[cell]figure) error {
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
			for _, at := range []cell{b.ours, b.theirs} {
				if figures[at].unit != panel.unit {
					return fmt.Errorf("the tables have no row %q with a figure in %s in column %q", at.row, panel.unit, at.column)
				}
			}
			chosen = append(chosen, row{b.name, figures[b.ours], figures[b.theirs]})
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
	// The reader's machine may not have the font that was measured here.
	_, err := w.Write(fontFamily.ReplaceAll(b.Bytes(), []byte("font-family:sans-serif;")))
	return err
}

var fontFamily = regexp.MustCompile(`font-family:[^;"]*;`)

// bars draws one panel; the first row is at the top.
func bars(title string, rows []row, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, 12
	p.Title.Padding = 6
	n := len(rows)
	const thick = 0.42 * vg.Centimeter
	names := make([]string, n)
	for _, series := range []struct {
		name  string
		of    func(row) figure
		color color.Color
		shift vg.Length
	}{
		{"cnibox", func(r row) figure { return r.ours }, ours, thick / 2},
		{"reference plugins", func(r row) figure { return r.theirs }, reference, -thick / 2},
	} {
		values := make(plotter.Values, n)
		labels := plotter.XYLabels{XYs: make(plotter.XYs, n), Labels: make([]string, n)}
		for i, r := range rows {
			at := n - 1 - i
			f := series.of(r)
			names[at], values[at], labels.Labels[at] = r.name, f.value, f.text
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
