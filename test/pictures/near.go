package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
)

// measured are the figures that a terminal may show, and the row of the tables that each belongs to. A time may be
// that of another network than the row's, but not that of a busy machine.
var measured = []struct {
	shown     *regexp.Regexp
	row, unit string
	scale     float64 // of the unit
	times     float64 // how far it may be off, up or down
}{
	{regexp.MustCompile(`\b([0-9.]+) ms\b`), "chain ADD by cni-exec", "ms", 1, 4},
	{regexp.MustCompile(`\bbinary of ([0-9]+) bytes\b`), "all plugins and cni-exec on disk", "MB", 1e6, 1.25},
}

// near returns an error for each figure in the text of a terminal that is far off its row of the tables.
func near(text string, figures map[cell]figure) error {
	var off []error
	for _, m := range measured {
		for _, found := range m.shown.FindAllStringSubmatch(text, -1) {
			value, err := strconv.ParseFloat(found[1], 64)
			want := figures[cell{m.row, columnOurs}]
			switch {
			case err != nil:
				off = append(off, err)
			case want.unit != m.unit:
				off = append(off, fmt.Errorf("%q is shown, and the tables have no row %q in %s", found[0], m.row, m.unit))
			case value/m.scale > m.times*want.value || value/m.scale < want.value/m.times:
				off = append(off, fmt.Errorf("%q is shown, and the tables have %s for %q: draw it on a machine that does nothing else, or measure anew (make numbers)",
					found[0], want.text, m.row))
			}
		}
	}
	return errors.Join(off...)
}
