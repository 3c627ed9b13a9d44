package tty

import (
	"fmt"
	"io"
	"strings"

	"cnibox/spec"
)

// A Progress draws a bar on a terminal: one line, written over and over. Its zero value
// draws nothing, and neither does that of a stream which is not a terminal.
type Progress struct {
	w     io.Writer
	what  string
	drawn int // hundredths that the line shows; -1: nothing yet
}

// barWidth is how many cells the bar has; with the rest the line fits 80 columns.
const barWidth = 40

// NewProgress returns a bar for w if that is a terminal.
func NewProgress(w io.Writer, what string) *Progress {
	f := terminal(w)
	if f == nil {
		return &Progress{}
	}
	return &Progress{w: f, what: spec.Printable(what), drawn: -1}
}

// Show draws how much of all is done, if that changes the line.
func (p *Progress) Show(done, all int) {
	if p.w == nil || all == 0 || done*100/all == p.drawn {
		return
	}
	p.drawn = done * 100 / all
	full := done * barWidth / all
	fmt.Fprintf(p.w, "\r%s [%s%s] %d/%d", p.what, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), done, all)
}

// Clear erases the line.
func (p *Progress) Clear() {
	if p.w != nil && p.drawn >= 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = -1
	}
}
