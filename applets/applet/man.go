package applet

import (
	"fmt"
	"slices"
	"strings"

	"cnibox/spec"
)

// A Page is a manual page in the macros of man(7), which every reader of such pages knows.
// Its methods add to it; their texts are plain ones, in which backquotes are round what is to be
// typed.
type Page struct {
	b     strings.Builder
	empty bool // nothing stands in the section, whose first paragraph needs no macro
}

// manDate is when the pages were changed last, as roff wants one.
const manDate = "2026-11-23"

// newPage begins the page of a program of section 8. Its words are not hyphenated: many are keys
// and paths.
func newPage(name, summary string) *Page {
	p := new(Page)
	fmt.Fprintf(&p.b, ".TH %s 8 %s \"cnibox %s\" \"cnibox\"\n.nh\n.ad l\n", strings.ToUpper(roff(name)), manDate, roff(Version))
	p.Section("NAME")
	fmt.Fprintf(&p.b, "%s \\- %s\n", roff(name), roff(summary))
	return p
}

// Section begins a section.
func (p *Page) Section(title string) {
	fmt.Fprintf(&p.b, ".SH %s\n", roff(title))
	p.empty = true
}

// paragraph begins one.
func (p *Page) paragraph() {
	if !p.empty {
		p.b.WriteString(".PP\n")
	}
	p.empty = false
}

// Text adds a paragraph, or several with an empty line between them.
func (p *Page) Text(text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		p.paragraph()
		p.lines(paragraph)
	}
}

// Item adds a term and its meaning. Lines of that which begin with a blank stay as they are.
func (p *Page) Item(term, text string) {
	fmt.Fprintf(&p.b, ".TP\n.B %s\n", roff(term))
	p.empty = false
	p.lines(text)
}

// Verbatim adds lines as they are.
func (p *Page) Verbatim(text string) {
	p.paragraph()
	p.unfilled(strings.Split(strings.Trim(text, "\n"), "\n"))
}

// unfilled adds lines as they are.
func (p *Page) unfilled(lines []string) {
	p.b.WriteString(".nf\n")
	for _, line := range lines {
		p.b.WriteString(startOfLine(roff(line)) + "\n")
	}
	p.b.WriteString(".fi\n")
}

// Keys adds the help of a plugin: each row of a table is an item, and all else is text.
func (p *Page) Keys(help string) {
	var table keyTable
	var text []string
	endText := func() {
		if len(text) > 0 {
			p.Text(strings.Join(text, "\n"))
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
			p.Indent()
		}
		p.Item(key, "("+kind+") "+meaning)
		if within {
			p.Outdent()
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

// Indent has what follows, up to Outdent, in from the left, as below an item.
func (p *Page) Indent() { p.b.WriteString(".RS\n") }

// Outdent ends it.
func (p *Page) Outdent() { p.b.WriteString(".RE\n") }

// String is the page.
func (p *Page) String() string { return p.b.String() }

// pageWidth is what a line of the source has about, in columns.
const pageWidth = 72

// lines adds a text that is filled, but for lines that begin with a blank.
func (p *Page) lines(text string) {
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
func (p *Page) filled(text string) {
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

// ManName is the name of the page of an applet: bridge(8) is another program.
func (a *Applet) ManName() string {
	if a.Main == nil {
		return "cnibox-" + a.Name
	}
	return a.Name
}

// ManPage is the manual page of an applet, one of all.
func (a *Applet) ManPage(all Table) string {
	p := newPage(a.ManName(), a.Summary)
	var others []string
	if a.Man != nil {
		a.Man(p)
		return p.String()
	}
	if a.Main != nil {
		p.Section("SYNOPSIS")
		p.Verbatim(a.Help)
		p.Section("APPLETS")
		for _, other := range all {
			p.Item(other.ManName()+"(8)", other.Summary)
		}
		others = append(others, "cni-exec(8)")
	} else {
		p.Section("DESCRIPTION")
		p.Text("The CNI plugin of a configuration with \"type\": \"" + a.Name + "\", which a container runtime or cni-exec(8) calls. " +
			"`cnibox help " + a.Name + "` prints what follows.")
		p.Section("CONFIGURATION")
		p.Keys(a.Help)
		p.Section("ENVIRONMENT")
		p.Item(LogEnv, logText)
		p.Item(spec.StateEnv, "absolute path of a directory: state is stored below it, unless a key says where")
		others = append(others, "cnibox(8)", "cni-exec(8)")
	}
	p.Section("SEE ALSO")
	p.Text(strings.Join(others, ", "))
	return p.String()
}

// logText is about LogEnv.
const logText = `where to write one line for each call of a verb, with its duration and outcome:
file (` + logFile + `), the absolute path of a file, syslog or stderr. Without it there is no log.`
