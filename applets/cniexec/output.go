package cniexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

// screen returns the screen of stdout. A wrong state is red.
func (c *call) screen() tty.Screen {
	s := tty.Of(c.Stdout, c.Getenv)
	s.Red = func(cell string) bool {
		return cell == chain.StateFault || strings.HasPrefix(cell, chain.StateFault+":") || strings.HasPrefix(cell, chain.StateGone+":") || cell == chain.StateInterrupted
	}
	return s
}

// nothing says on a terminal that there is nothing to print. In a pipe or a file, empty output says it.
func (c *call) nothing(text string) {
	if tty.IsTerminal(c.Stdout) && c.output != outputJSON {
		c.summarize("%s", text)
	}
}

// write writes to stdout. A pipe without a reader, as after head(1), is not an error.
func (c *call) write(text string) (exit int, err error) {
	if _, err := io.WriteString(c.Stdout, text); err != nil && !errors.Is(err, unix.EPIPE) {
		return 0, err
	}
	return exitOK, nil
}

// warn writes a line to stderr.
func (c *call) warn(format string, args ...any) {
	c.Complain("cni-exec", format, args...)
}

// summaries is where summary lines go; with -o json to stderr, since stdout is for the document.
func (c *call) summaries() io.Writer {
	if c.output == outputJSON {
		return c.Stderr
	}
	return c.Stdout
}

// summarize prints a summary line.
func (c *call) summarize(format string, args ...any) {
	fmt.Fprintln(c.summaries(), spec.Printable(fmt.Sprintf(format, args...)))
}

// sayOutcome prints a summary line and, below it, the commands that repair.
func (c *call) sayOutcome(line string, remedy hint.Remedy) {
	c.summarize("%s", line)
	io.WriteString(c.summaries(), remedy.Below())
}

// list writes a table in which an empty cell is a dash; without rows it writes nothing.
func (c *call) list(s tty.Screen, columns []tty.Column, rows [][]string) (exit int, err error) {
	if len(rows) == 0 {
		return exitOK, nil
	}
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
	}
	return c.write(s.Table(columns, rows))
}

// cell returns the list as one cell.
func cell[T any](list []T, text func(T) string) string {
	return strings.Join(each(list, text), ",")
}

// bare returns an address without its prefix length.
func bare(p netip.Prefix) string { return p.Addr().String() }

// print writes a result in the version of the list.
func (c *call) print(l *chain.List, res *spec.Result) error {
	v, err := spec.ParseVersion(l.CNIVersion)
	if err != nil {
		return err
	}
	doc, err := res.EncodeFor(v, c.target.IfName)
	if err != nil {
		return err
	}
	return c.writeResult(doc)
}

// writeResult writes it to stdout with a newline at the end, which cnitool does not print.
func (c *call) writeResult(doc []byte) error {
	_, err := fmt.Fprintf(c.Stdout, "%s\n", doc)
	return err
}

// writeJSON writes a document to stdout, escaped for terminals.
func (c *call) writeJSON(doc any) (exit int, err error) {
	c.documented = true
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return 0, err
	}
	return c.write(string(spec.EscapeJSON([]byte(b.String()))))
}

// notNull returns a list that is not null in JSON.
func notNull[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// each returns the results of fn for a list; the result is not null in JSON.
func each[T, D any](list []T, fn func(T) D) []D {
	all := make([]D, 0, len(list))
	for _, e := range list {
		all = append(all, fn(e))
	}
	return all
}
