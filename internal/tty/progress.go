package tty

import (
	"fmt"
	"io"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// A Progress draws a progress bar on one line of a terminal. The zero value draws nothing, and neither
// does the Progress of a stream that is not a terminal.
type Progress struct {
	w     io.Writer
	what  string
	drawn int // percentage on the line; -1: nothing yet
}

// barWidth is the width of the bar in columns; the whole line fits 80 columns.
const barWidth = 40

// NewProgress returns a bar for w if that is a terminal.
func NewProgress(w io.Writer, what string) *Progress {
	f := terminal(w)
	if f == nil {
		return &Progress{}
	}
	return &Progress{w: f, what: spec.Printable(what), drawn: -1}
}

// Show draws the percentage of done in all, if it has changed.
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
