package main

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
)

func names() (list []string) {
	for _, a := range applets.All() {
		list = append(list, a.Name)
	}
	return list
}

// tagOf returns the build tag that excludes an applet.
func tagOf(applet string) string { return "no_" + strings.ReplaceAll(applet, "-", "_") }

// tags returns the build tags of this binary.
func tags() []string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return strings.Split(s.Value, ",")
		}
	}
	return nil
}

// The applets have the names of the list from which their table is generated, without those that a tag leaves out.
func TestAppletsGolden(t *testing.T) {
	const file = "testdata/applets.golden"
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	left := tags()
	want := slices.DeleteFunc(strings.Fields(string(golden)), func(name string) bool { return slices.Contains(left, tagOf(name)) })
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("got the applets %q, want %q", got, want)
	}
}

// Each plugin is named in README.md, and has a row in docs/numbers.md, and a script or an example of its name, with a row for the
// example. -update adds missing rows, with the plugin's summary.
func TestPlaces(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range applets.All() {
		if a.Main != nil {
			continue
		}
		_, script := os.Stat("test/script/testdata/" + a.Name + ".txt")
		_, example := os.Stat("examples/" + a.Name + ".conflist")
		if script != nil && example != nil && a.Name != "host-local" { // tested by the scripts of other plugins
			t.Errorf("%v, and %v", example, script)
		}
		if !strings.Contains(string(readme), "`"+a.Name+"`") {
			t.Errorf("README.md does not name %s among the plugins", a.Name)
		}
		wantRow(t, "docs/numbers.md", "`"+a.Name+"`", a.Summary+" | ? |")
		if example == nil {
			wantRow(t, "examples/README.md", "`"+a.Name+".conflist`", a.Summary+" | |")
		}
	}
}

// wantRow requires a row in the table of plugins or examples in a file; -update adds it.
func wantRow(t *testing.T, file, name, rest string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	row := "\n| " + name + " |"
	if strings.Contains(text, row) {
		return
	}
	if !*update {
		t.Errorf("%s has no row for %s (go test -run TestPlaces -update .)", file, name)
		return
	}
	from := strings.Index(text, "\n| `bridge")
	end := from + strings.Index(text[from:], "|\n\n") + 1
	if err := os.WriteFile(file, []byte(text[:end]+row+" "+rest+text[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}
