package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
)

// A page is a manual page in the macros of man(7), which every reader of such pages knows.
// Its methods add to it; their texts are plain ones, in which backquotes are round what is to be
// typed.
type page struct {
	b     strings.Builder
	empty bool // nothing stands in the section, whose first paragraph needs no macro
}

// manDate is when the pages were changed last, as roff wants one.
const manDate = "2026-11-27"

// newPage begins the page of a program of section 8. Its words are not hyphenated: many are keys
// and paths.
func newPage(name, summary string) *page {
	p := new(page)
	fmt.Fprintf(&p.b, ".TH %s 8 %s \"cnibox %s\" \"cnibox\"\n.nh\n.ad l\n", strings.ToUpper(roff(name)), manDate, roff(applet.Version))
	p.section("NAME")
	fmt.Fprintf(&p.b, "%s \\- %s\n", roff(name), roff(summary))
	return p
}

func (p *page) section(title string) {
	fmt.Fprintf(&p.b, ".SH %s\n", roff(title))
	p.empty = true
}

func (p *page) paragraph() {
	if !p.empty {
		p.b.WriteString(".PP\n")
	}
	p.empty = false
}

// text adds a paragraph, or several with an empty line between them.
func (p *page) text(text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		p.paragraph()
		p.lines(paragraph)
	}
}

// item adds a term and its meaning. Lines of that which begin with a blank stay as they are.
func (p *page) item(term, text string) {
	fmt.Fprintf(&p.b, ".TP\n.B %s\n", roff(term))
	p.empty = false
	p.lines(text)
}

// verbatim adds lines as they are.
func (p *page) verbatim(text string) {
	p.paragraph()
	p.unfilled(strings.Split(strings.Trim(text, "\n"), "\n"))
}

// unfilled adds lines as they are.
func (p *page) unfilled(lines []string) {
	p.b.WriteString(".nf\n")
	for _, line := range lines {
		p.b.WriteString(startOfLine(roff(line)) + "\n")
	}
	p.b.WriteString(".fi\n")
}

// keys adds the help of a plugin: each row of a table is an item, and all else is text.
func (p *page) keys(help string) {
	var table keyTable
	var text []string
	endText := func() {
		if len(text) > 0 {
			p.text(strings.Join(text, "\n"))
			text = nil
		}
	}
	lines := strings.Split(strings.Trim(help, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], "key ") {
			table = newKeyTable(lines[i])
			continue
		}
		key, kind, meaning, ok := table.row(lines[i])
		if !ok {
			text = append(text, strings.TrimSpace(lines[i]))
			continue
		}
		within := strings.HasPrefix(lines[i], " ") // a member of the key above
		for ; i+1 < len(lines) && table.goesOn(lines[i+1]); i++ {
			meaning += "\n" + strings.TrimSpace(lines[i+1])
		}
		endText()
		if within {
			p.indent()
		}
		p.item(key, "("+kind+") "+meaning)
		if within {
			p.outdent()
		}
	}
	endText()
}

// A keyTable has the columns at which type, default and meaning of a key begin; 0: there is no
// table yet.
type keyTable struct{ kind, value, meaning int }

// newKeyTable reads the line of titles.
func newKeyTable(titles string) keyTable {
	return keyTable{strings.Index(titles, "type"), strings.Index(titles, "default"), strings.Index(titles, "meaning")}
}

// row reads a row: the key, its type and default, and the first line of its meaning. Text has
// no two blanks before the column of the type.
func (t keyTable) row(line string) (key, kind, meaning string, ok bool) {
	if t.kind == 0 || len(line) <= t.meaning || line[t.kind-2:t.kind] != "  " || line[t.kind] == ' ' {
		return "", "", "", false
	}
	kind = strings.TrimSpace(line[t.kind:t.value])
	if value := strings.TrimSpace(line[t.value:t.meaning]); value != "-" {
		kind += ", default " + value
	}
	return strings.TrimSpace(line[:t.kind]), kind, line[t.meaning:], true
}

// goesOn reports whether a line has more of the meaning.
func (t keyTable) goesOn(line string) bool {
	return len(line) > t.meaning && strings.TrimSpace(line[:t.meaning]) == ""
}

// indent has what follows, up to outdent, in from the left, as below an item.
func (p *page) indent() { p.b.WriteString(".RS\n") }

// outdent ends it.
func (p *page) outdent() { p.b.WriteString(".RE\n") }

// pageWidth is what a line of the source has about, in columns.
const pageWidth = 72

// lines adds a text that is filled, but for lines that begin with a blank.
func (p *page) lines(text string) {
	lines := strings.Split(text, "\n")
	for len(lines) > 0 {
		blank := strings.HasPrefix(lines[0], " ")
		n := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, " ") != blank })
		if n < 0 {
			n = len(lines)
		}
		if blank {
			p.unfilled(lines[:n])
		} else {
			p.filled(strings.Join(lines[:n], "\n"))
		}
		lines = lines[n:]
	}
}

// filled adds a text that is filled.
func (p *page) filled(text string) {
	parts := strings.Split(roff(text), "`")
	for i := 1; i+1 < len(parts); i += 2 {
		parts[i] = `\fB` + parts[i] + `\fR`
	}
	line := ""
	for word := range strings.FieldsSeq(strings.Join(parts, "")) {
		if line != "" && len(line)+len(word) >= pageWidth {
			p.b.WriteString(startOfLine(line) + "\n")
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	p.b.WriteString(startOfLine(line) + "\n")
}

// roff escapes what roff takes for its own, and what is not ASCII.
func roff(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '"':
			b.WriteString(`\(dq`)
		case r > '~':
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// startOfLine keeps a line from being a request.
func startOfLine(line string) string {
	if strings.HasPrefix(line, ".") {
		return `\&` + line
	}
	return line
}
