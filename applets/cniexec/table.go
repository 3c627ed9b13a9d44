package cniexec

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// A screen is how text for people is written: as wide as the terminal, or COLUMNS; without either
// nothing is cut. Its zero value is as wide as the text, and has ASCII alone.
type screen struct {
	width  int // columns; 0: nothing is cut
	utf8   bool
	colour bool // on a terminal, unless NO_COLOR or TERM=dumb is set
}

// screen is that of stdout.
func (c *call) screen() screen {
	var s screen
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(c.Getenv(name)); locale != "" {
			s.utf8 = strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
			break
		}
	}
	if f := terminal(c.Stdout); f != nil {
		s.width = helpWidth // of a serial line
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			s.width = int(size.Col)
		}
		s.colour = c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb"
	}
	if n, err := strconv.Atoi(c.Getenv("COLUMNS")); err == nil && n > 0 {
		s.width = n
	}
	return s
}

// terminal returns the file of a stream that is a terminal, else nil.
func terminal(w io.Writer) *os.File {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return f
}

// write writes to stdout. That nothing reads it any more, as behind head(1), is no error.
func (c *call) write(text string) (exit int, err error) {
	if _, err := io.WriteString(c.Stdout, text); err != nil && !errors.Is(err, unix.EPIPE) {
		return 0, err
	}
	return exitOK, nil
}

// A column of a table that is too wide is left out if it is optional, and then cut to min
// columns: those that are cut early before all others, then the widest of these. With min 0 it
// is never cut.
type column struct {
	title    string
	min      int
	optional bool
	early    bool
}

// table formats rows under the titles of their columns, two blanks between them. Without a
// title in any column there is no line of titles.
func (s screen) table(columns []column, rows [][]string) string {
	widths := make([]int, len(columns))
	titled := false
	for i, c := range columns {
		titled = titled || c.title != ""
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if widths[i] > 0 { // a column without values has no title either
			widths[i] = max(widths[i], len(c.title))
		}
	}
	s.fit(columns, widths)
	var b strings.Builder
	if titled {
		titles := make([]string, len(columns))
		for i, c := range columns {
			titles[i] = c.title
		}
		s.row(&b, widths, titles)
	}
	for _, row := range rows {
		s.row(&b, widths, row)
	}
	return b.String()
}

// gap is between two columns.
const gap = 2

// fit makes the widths fit the screen, if it can. A column of width 0 is left out.
func (s screen) fit(columns []column, widths []int) {
	total := func() int {
		sum := -gap
		for _, w := range widths {
			if w > 0 {
				sum += w + gap
			}
		}
		return sum
	}
	for i := range columns {
		if s.width > 0 && total() > s.width && columns[i].optional {
			widths[i] = 0
		}
	}
	for s.width > 0 && total() > s.width {
		widest := -1
		for i, c := range columns {
			if c.min == 0 || widths[i] <= c.min {
				continue
			}
			if widest < 0 || c.early && !columns[widest].early || c.early == columns[widest].early && widths[i] > widths[widest] {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// row writes one line, without blanks at its end.
func (s screen) row(b *strings.Builder, widths []int, cells []string) {
	blanks := 0
	for i, cell := range cells {
		if widths[i] == 0 {
			continue
		}
		if cell == "" {
			blanks += widths[i] + gap
			continue
		}
		cell = s.cut(cell, widths[i])
		b.WriteString(strings.Repeat(" ", blanks))
		blanks = widths[i] - utf8.RuneCountInString(cell) + gap
		b.WriteString(s.paint(cell))
	}
	b.WriteByte('\n')
}

// cut shortens text to so many columns, of which the last says so; 0: it is left whole.
func (s screen) cut(text string, width int) string {
	text = spec.Printable(text)
	if width == 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	end := "~"
	if s.utf8 {
		end = "…"
	}
	return string([]rune(text)[:width-1]) + end
}

// paint makes the state of what is not as it should be red, on a terminal that has colours.
func (s screen) paint(cell string) string {
	if s.colour && (strings.HasPrefix(cell, verdictFault+":") || strings.HasPrefix(cell, stateGone+":") || cell == stateInterrupted) {
		return "\x1b[31m" + cell + "\x1b[m"
	}
	return cell
}
