// Package tty writes text for people: tables as wide as the terminal, colours, and the progress of long work.
package tty

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// A Screen has the properties of an output for people. Its zero value cuts nothing, and has only ASCII.
type Screen struct {
	Width  int // columns of the terminal, or COLUMNS; 0: nothing is cut
	UTF8   bool
	Colour bool                   // on a terminal, unless NO_COLOR or TERM=dumb is set
	Red    func(cell string) bool // whether a cell of a table is red, with Colour; nil: none is
}

// Width is the width in columns of a terminal that does not know its size, such as a serial line.
const Width = 80

// Of returns the screen of a stream, with the locale, COLUMNS, NO_COLOR and TERM of the environment.
func Of(w io.Writer, getenv func(string) string) Screen {
	var s Screen
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(name)); locale != "" {
			s.UTF8 = strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
			break
		}
	}
	if f := terminal(w); f != nil {
		s.Width = Width
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			s.Width = int(size.Col)
		}
		s.Colour = getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
	}
	if n, err := strconv.Atoi(getenv("COLUMNS")); err == nil && n > 0 {
		s.Width = n
	}
	return s
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(w io.Writer) bool { return terminal(w) != nil }

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

// A Column of a table that is too wide is left out if it is Optional. If that is not enough, columns
// are cut, down to Min characters: those with Early first, and of these the widest. With Min 0 a
// column is never cut.
type Column struct {
	Title    string
	Min      int
	Optional bool
	Early    bool
}

// Table formats rows under the titles of their columns, with two spaces between columns. Without any
// title there is no line of titles.
func (s Screen) Table(columns []Column, rows [][]string) string {
	widths := make([]int, len(columns))
	titled := false
	for i, c := range columns {
		titled = titled || c.Title != ""
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if widths[i] > 0 { // a column without values has no title either
			widths[i] = max(widths[i], len(c.Title))
		}
	}
	s.fit(columns, widths)
	var b strings.Builder
	if titled {
		titles := make([]string, len(columns))
		for i, c := range columns {
			titles[i] = c.Title
		}
		s.row(&b, widths, titles)
	}
	for _, row := range rows {
		s.row(&b, widths, row)
	}
	return b.String()
}

const gap = 2

// fit reduces the widths to fit the screen, if possible. A column of width 0 is left out.
func (s Screen) fit(columns []Column, widths []int) {
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
		if s.Width > 0 && total() > s.Width && columns[i].Optional {
			widths[i] = 0
		}
	}
	for s.Width > 0 && total() > s.Width {
		widest := -1
		for i, c := range columns {
			if c.Min == 0 || widths[i] <= c.Min {
				continue
			}
			if widest < 0 || c.Early && !columns[widest].Early || c.Early == columns[widest].Early && widths[i] > widths[widest] {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// row writes one line, without spaces at its end.
func (s Screen) row(b *strings.Builder, widths []int, cells []string) {
	blanks := 0
	for i, cell := range cells {
		if widths[i] == 0 {
			continue
		}
		if cell == "" {
			blanks += widths[i] + gap
			continue
		}
		cell = s.Cut(cell, widths[i])
		b.WriteString(strings.Repeat(" ", blanks))
		blanks = widths[i] - utf8.RuneCountInString(cell) + gap
		b.WriteString(s.paint(cell))
	}
	b.WriteByte('\n')
}

// Cut shortens text to width characters, with "…" or "~" at its end; 0: it is not cut.
func (s Screen) Cut(text string, width int) string {
	text = spec.Printable(text)
	if width == 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	end := "~"
	if s.UTF8 {
		end = "…"
	}
	return string([]rune(text)[:width-1]) + end
}

// paint makes a cell red if Red reports true, on a terminal with colours.
func (s Screen) paint(cell string) string {
	if s.Colour && s.Red != nil && s.Red(cell) {
		return "\x1b[31m" + cell + "\x1b[m"
	}
	return cell
}
