package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
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

// chain returns the bar of a row in the first table of docs/numbers.md.
func chain(name, row string) bar {
	return bar{name, cell{row, columnOurs}, cell{row, columnTheirs}}
}

// charted are the panels of the chart from top to bottom; each has one unit.
var charted = []struct {
	title, unit string
	bars        []bar
}{
	{"bridge, host-local, portmap and tuning: milliseconds, less is better", "ms", []bar{
		chain("ADD of the list", "chain ADD by cni-exec"), chain("CHECK of the list", "chain CHECK by cni-exec"),
		chain("DEL of the list", "chain DEL by cni-exec"), chain("ADD, each plugin", "chain ADD, a process for each plugin"),
	}},
	{"the 500th container: times as long as the first", "×", []bar{
		{"ADD by cni-exec", cell{"ADD, cni-exec, to the 1st", columnRatio}, cell{"ADD, reference, to the 1st", columnRatio}},
		{"DEL by cni-exec", cell{"DEL, cni-exec, to the 1st", columnRatio}, cell{"DEL, reference, to the 1st", columnRatio}},
	}},
}

// Sizes in pixels: of the picture, of what is left of the bars, and of a bar.
const (
	chartWidth = 756.0
	namesWidth = 170.0
	barsWidth  = 480.0
	thick      = 16.0
	rowHeight  = 2*thick + 13
	titleSpace = 44.0
)

// drawChart draws a pair of bars for each charted row, with the figures of the tables.
func drawChart(w io.Writer, figures map[cell]figure) error {
	var body strings.Builder
	say := func(x, y, size float64, anchor, text string) {
		fmt.Fprintf(&body, `<text x="%g" y="%.1f" font-size="%g" text-anchor="%s">%s</text>`+"\n", x, y, size, anchor, html.EscapeString(text))
	}
	draw := func(x, y, width float64, class string) {
		fmt.Fprintf(&body, `<rect x="%g" y="%g" width="%.1f" height="%g" class="%s"/>`+"\n", x, y, width, thick, class)
	}
	y := 14.0
	series := []struct{ name, class string }{{"cnibox", "ours"}, {"reference plugins", "theirs"}}
	for i, s := range series {
		x := namesWidth + 130*float64(i)
		draw(x, y, thick, s.class)
		say(x+thick+6, y+13, 13, "start", s.name)
	}
	y += thick
	for _, panel := range charted {
		most := 0.0
		for _, b := range panel.bars {
			for _, at := range []cell{b.ours, b.theirs} {
				f := figures[at]
				if f.unit != panel.unit {
					return fmt.Errorf("the tables have no row %q with a figure in %s in column %q", at.row, panel.unit, at.column)
				}
				most = max(most, f.value)
			}
		}
		say(chartWidth/2, y+titleSpace-16, 15, "middle", panel.title)
		y += titleSpace
		for _, b := range panel.bars {
			say(namesWidth-10, y+thick+5, 13, "end", b.name)
			for i, at := range []cell{b.ours, b.theirs} {
				f, top := figures[at], y+thick*float64(i)
				width := barsWidth * f.value / most
				draw(namesWidth, top, width, series[i].class)
				say(math.Round(namesWidth+width+6), top+13, 13, "start", f.text)
			}
			y += rowHeight
		}
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%[1]g" height="%[2]g">
%[4]s<rect width="100%%" height="100%%" class="ground"/>
<g font-family="sans-serif">
%[3]s</g>
</svg>
`, chartWidth, y, body.String(), schemes)
	return err
}
