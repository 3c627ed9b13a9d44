package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// texts returns the texts of an SVG document, and fails if it is not well formed.
func texts(t *testing.T, data []byte) (list []string) {
	t.Helper()
	inText := false
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
		case xml.CharData:
			if inText {
				list = append(list, string(token))
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func TestTerminal(t *testing.T) {
	var b bytes.Buffer
	if err := drawTerminal(&b, "\x1b[1mTitle\x1b[0m  \x1b[2m<1 & 2>\x1b[0m\n ✓ done\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := texts(t, b.Bytes()), []string{"Title", "<1 & 2>", " ✓ done"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// The second run begins where the terminal shows it: after "Title" and two blanks.
	if !strings.Contains(b.String(), `<text x="72" y="29.5" textLength="56" fill="#8b949e">`) {
		t.Errorf("the faint text has another place:\n%s", &b)
	}
	for _, text := range []string{"", "\x1b[35mviolet"} {
		if err := drawTerminal(io.Discard, text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// A picture shows no figure that is far off the tables.
func TestFarOffTheTables(t *testing.T) {
	figures := map[cell]figure{
		{"chain ADD by cni-exec", columnOurs}:            {"6.62 ms", "ms", 6.62},
		{"all plugins and cni-exec on disk", columnOurs}: {"8.58 MB", "MB", 8.58},
	}
	for text, want := range map[string]string{
		"web attached in 12 ms":         "",
		"web attached in 388 ms":        `"388 ms" is shown, and the tables have 6.62 ms`,
		"web attached in 0.3 ms":        `"0.3 ms" is shown`,
		"one binary of 8593570 bytes":   "",
		"one binary of 18593570 bytes":  `"binary of 18593570 bytes" is shown, and the tables have 8.58 MB`,
		"nothing, and no figure either": "",
	} {
		err := near(text, figures)
		if got := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := near("12 ms", nil); err == nil {
		t.Error("no table: no error")
	}
}

// Chart and graph have colors for light and for dark pages.
func TestSchemes(t *testing.T) {
	const dot = `<svg><g id="graph0" class="graph"><polygon fill="white"/><text>cni0</text></g></svg>`
	var once, twice bytes.Buffer
	if err := errors.Join(drawGraph(&once, dot), drawGraph(&twice, once.String())); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, once.Bytes()); !slices.Equal(got, []string{"cni0"}) || once.String() != twice.String() {
		t.Errorf("got %q:\n%s\nand of that:\n%s", got, &once, &twice)
	}
	if err := drawGraph(io.Discard, "<svg></svg>"); err == nil {
		t.Error("no graph: no error")
	}
	for _, name := range []string{"bench.svg", "network.svg"} {
		data, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), schemes) {
			t.Errorf("docs/%s has other colors: `make chart`, `make pictures`", name)
		}
	}
}

const tables = `<!-- bench: users -->
Against others.

| | cnibox | quartiles | an empty Go process | reference | | target |
|---|--:|---|--:|--:|---|---|
| peak memory of a call, at most | 8.05 MiB |  |  |  |  | 12.0 MiB |
| the slowest VERSION | 1.19 ms | | | | | 1.6 ms |
| chain ADD, a process for each plugin | 10.4 ms | 9 to 11 | 2.02 | 46.1 ms | 4.4× faster | **5×** |
| chain ADD by ` + "`cni-exec`" + ` | 6.3 ms | | | 46.2 ms | | |
| chain CHECK by ` + "`cni-exec`" + ` | 3.8 ms | | | 18.6 ms | | |
| chain DEL by ` + "`cni-exec`" + ` | 24.8 ms | | | 161 ms | | |
<!-- bench end -->
<!-- bench: all -->
| | | cnibox | compared to | | target |
|---|---|--:|--:|--:|---|
| ADD, cni-exec, to the 1st | ms | 23.5 | 10.5 | 1.5× | |
| DEL, cni-exec, to the 1st | ms | 23.5 | 10.5 | 1.19× | |
| ADD, reference, to the 1st | ms | 23.5 | 10.5 | 5.4× | |
| DEL, reference, to the 1st | ms | 23.5 | 10.5 | 1.32× | |
<!-- bench end -->
`

// The chart has the figures of the tables, and an error without them.
func TestChart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "README.md")
	draw := func(text string) ([]byte, error) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		figures, err := readTables([]string{path})
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		err = drawChart(&b, figures)
		return b.Bytes(), err
	}
	svg, err := draw(tables)
	if err != nil {
		t.Fatal(err)
	}
	got := texts(t, svg)
	for _, want := range []string{"10.4 ms", "46.1 ms", "6.3 ms", "46.2 ms", "3.8 ms", "18.6 ms", "24.8 ms", "161 ms", "1.5×", "5.4×", "1.19×", "1.32×", "cnibox", "reference plugins"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in the chart: %q", want, got)
		}
	}
	for what, text := range map[string]string{
		"no table":     "# cnibox\n",
		"a row less":   strings.Replace(tables, "chain DEL", "chain GC", 1),
		"another unit": strings.Replace(tables, "24.8 ms | | | 161 ms", "0.02 s | | | 0.16 s", 1),
		"no reference": strings.Replace(tables, "| 161 ms", "| ", 1),
	} {
		if _, err := draw(text); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// The chart in docs has the current figures of the documents.
func TestChartMatchesTables(t *testing.T) {
	figures, err := readTables([]string{"../../docs/numbers.md"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := drawChart(&b, figures); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../../docs/bench.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, b.Bytes()) {
		t.Error("docs/bench.svg is not the chart of docs/numbers.md: `make chart` draws it")
	}
}
