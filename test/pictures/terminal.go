package main

import (
	"errors"
	"fmt"
	"html"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Sizes of a character cell in pixels.
const (
	charWidth  = 8.0
	lineHeight = 18.0
	margin     = 16.0
)

// sgr matches the escape sequence for color and weight, ECMA-48 section 8.3.117; attributes are
// those that the demo uses.
var (
	sgr        = regexp.MustCompile(`\x1b\[([0-9;]*)m`)
	attributes = map[string]string{
		"": "", "0": "", "1": ` font-weight="bold" fill="#ffffff"`, "2": ` fill="#8b949e"`, "31": ` fill="#ff7b72"`, "32": ` fill="#3fb950"`,
	}
)

// drawTerminal draws the text of a terminal. Each run of characters with the same attributes has a
// fixed position and length, whatever the font is.
func drawTerminal(w io.Writer, text string) error {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return errors.New("no text on standard input")
	}
	columns := 0
	var body strings.Builder
	for i, line := range lines {
		y := margin + lineHeight*(float64(i)+0.75)
		column, style := 0, ""
		put := func(s string) {
			n := utf8.RuneCountInString(s)
			if strings.TrimSpace(s) != "" {
				fmt.Fprintf(&body, `<text x="%g" y="%g" textLength="%g"%s>%s</text>`+"\n", margin+charWidth*float64(column), y, charWidth*float64(n), style, html.EscapeString(s))
			}
			column += n
		}
		for {
			at := sgr.FindStringSubmatchIndex(line)
			if at == nil {
				break
			}
			put(line[:at[0]])
			known := false
			if style, known = attributes[line[at[2]:at[3]]]; !known {
				return fmt.Errorf("line %d: attribute %q has no color here", i+1, line[at[2]:at[3]])
			}
			line = line[at[1]:]
		}
		put(line)
		columns = max(columns, column)
	}
	width, height := 2*margin+charWidth*float64(columns), 2*margin+lineHeight*float64(len(lines))
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g">
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<g font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="13" fill="#c9d1d9" xml:space="preserve">
%s</g>
</svg>
`, width, height, width, height, body.String())
	return err
}
