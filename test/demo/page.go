package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// width is that of a line, in characters.
const width = 78

// A page writes text for people.
type page struct {
	w     io.Writer
	color bool
}

// newPage uses color on a terminal, unless NO_COLOR is set.
func newPage(f *os.File) *page {
	st, err := f.Stat()
	terminal := err == nil && st.Mode()&os.ModeCharDevice != 0
	return &page{w: f, color: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// The styles are parameters of the escape sequence SGR, ECMA-48 section 8.3.117.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
)

// paint adds the escape sequences around s, if color is on.
func (p *page) paint(style, s string) string {
	if !p.color {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// title heads the page.
func (p *page) title(s string) { fmt.Fprintln(p.w, p.paint(bold, s)) }

// section begins a part of the page; text after a tab is faint.
func (p *page) section(s string) { fmt.Fprintln(p.w, "\n"+p.split(s, bold)) }

// line writes plain text; text after a tab is faint.
func (p *page) line(s string) { fmt.Fprintln(p.w, " "+p.split(s, "")) }

// split paints the texts before and after a tab differently.
func (p *page) split(s, style string) string {
	head, tail, _ := strings.Cut(s, "\t")
	if style != "" {
		head = p.paint(style, head)
	}
	if tail == "" {
		return head
	}
	return head + p.paint(faint, tail)
}

// step calls fn and writes its text, with the time it took at the right margin. fn returns the
// text, since it knows more afterwards. A failed step is marked, and its error ends the demo.
func (p *page) step(fn func() (text string, err error)) error {
	begin := time.Now()
	text, err := fn()
	took := time.Since(begin)
	if err != nil {
		fmt.Fprintln(p.w, " "+p.paint(red, "✗")+" "+text)
		return err
	}
	time := fmt.Sprintf("%.1f ms", float64(took)/float64(time.Millisecond))
	gap := max(1, width-3-utf8.RuneCountInString(text)-len(time))
	fmt.Fprintln(p.w, " "+p.paint(green, "✓")+" "+text+strings.Repeat(" ", gap)+p.paint(faint, time))
	return nil
}
