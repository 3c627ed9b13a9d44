package cniexec

import (
	"fmt"
	"io"
	"strings"

	"cnibox/spec"
)

// A progress draws a bar on a terminal: one line, written over and over. Its zero value
// draws nothing, and neither does that of a stream which is no terminal.
type progress struct {
	w     io.Writer
	what  string
	drawn int // hundredths that the line shows; -1: nothing yet
}

// barWidth is how many cells the bar has; with the rest the line fits 80 columns.
const barWidth = 40

// newProgress returns a bar for w if that is a terminal.
func newProgress(w io.Writer, what string) *progress {
	f := terminal(w)
	if f == nil {
		return &progress{}
	}
	return &progress{w: f, what: spec.Printable(what), drawn: -1}
}

// show draws how much of all is done, if that changes the line.
func (p *progress) show(done, all int) {
	if p.w == nil || all == 0 || done*100/all == p.drawn {
		return
	}
	p.drawn = done * 100 / all
	full := done * barWidth / all
	fmt.Fprintf(p.w, "\r%s [%s%s] %d/%d", p.what, strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), done, all)
}

// clear erases the line.
func (p *progress) clear() {
	if p.w != nil && p.drawn >= 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = -1
	}
}
