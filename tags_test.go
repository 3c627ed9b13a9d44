package main

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
)

func names() (list []string) {
	for _, a := range applets.All() {
		list = append(list, a.Name)
	}
	return list
}

// tagOf is the build tag that leaves an applet out.
func tagOf(applet string) string { return "no_" + strings.ReplaceAll(applet, "-", "_") }

// tags are those that this program was built with.
func tags() []string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return strings.Split(s.Value, ",")
		}
	}
	return nil
}

// TestAppletsGolden makes a missing or new applet a decision. One that was left
// out by its tag is not missing.
func TestAppletsGolden(t *testing.T) {
	const file = "testdata/applets.golden"
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(names(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	left := tags()
	want := slices.DeleteFunc(strings.Fields(string(golden)), func(name string) bool { return slices.Contains(left, tagOf(name)) })
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("got the applets %q, want %q (go test -run AppletsGolden -update .)", got, want)
	}
}

// TestAppletsHaveTags looks at the files that register the plugins: the tag of each leaves
// it out, and it alone. The tool cnibox is always there.
func TestAppletsHaveTags(t *testing.T) {
	for _, a := range applets.All() {
		file := "applets/with_" + strings.ReplaceAll(a.Name, "-", "") + ".go"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%s is registered elsewhere: %v", a.Name, err)
			continue
		}
		want := "//go:build !" + tagOf(a.Name) + "\n"
		if a.Name == "cnibox" {
			want = "package applets\n"
		}
		if !strings.HasPrefix(string(text), want) {
			t.Errorf("%s registers %s, so it begins with %q", file, a.Name, want)
		}
		if a.Name == "cnibox" {
			continue
		}
		other := strings.Replace(file, "with_", "without_", 1)
		if text, err := os.ReadFile(other); err != nil || !strings.HasPrefix(string(text), "//go:build "+tagOf(a.Name)+"\n") {
			t.Errorf("%s has no entry without %s: %v", other, a.Name, err)
		}
	}
}

// TestPlaces wants the other places of a plugin: a row in the README's table, and a script or an
// example of its name, with a row for the example. With -update rows that are missing are
// written, with the plugin's summary.
func TestPlaces(t *testing.T) {
	for _, a := range applets.All() {
		if a.Main != nil {
			continue
		}
		_, script := os.Stat("test/script/testdata/" + a.Name + ".txt")
		_, example := os.Stat("examples/" + a.Name + ".conflist")
		if script != nil && example != nil && a.Name != "host-local" { // in the scripts of all networks
			t.Errorf("%v, and %v", example, script)
		}
		wantRow(t, "README.md", "`"+a.Name+"`", a.Summary+" | ? |")
		if example == nil {
			wantRow(t, "examples/README.md", "`"+a.Name+".conflist`", a.Summary+" | |")
		}
	}
}

// wantRow wants a row in the table of plugins or examples of a file; with -update a missing one is written.
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
