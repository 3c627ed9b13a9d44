package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/cniexec"
)

// mandoc and groff have no warnings, and no line is wider than 80 columns.
func TestManPages(t *testing.T) {
	for _, reader := range [][]string{{"mandoc", "-Tlint", "-Wwarning"}, {"groff", "-man", "-ww", "-Tutf8", "-rLL=80n", "-P-cbou"}} {
		t.Run(reader[0], func(t *testing.T) {
			if _, err := exec.LookPath(reader[0]); err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			all := applets.All()
			for _, a := range all {
				cmd := exec.Command(reader[0], reader[1:]...)
				var warnings bytes.Buffer
				cmd.Stdin, cmd.Stderr = strings.NewReader(manPage(a, all)), &warnings
				out, err := cmd.Output()
				if reader[0] == "mandoc" { // prints only warnings
					warnings.Write(out)
				}
				if err != nil || warnings.Len() > 0 {
					t.Errorf("%s: %v\n%s", a.Name, err, &warnings)
				}
				for line := range strings.Lines(string(out)) {
					if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
						t.Errorf("%s: %q has more than 80 columns", a.Name, line)
					}
				}
			}
		})
	}
}

// Each plugin has a page with its keys, and cni-exec one with its manual. Pages of removed applets
// are deleted.
func TestRunWritesPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "man")
	for range 2 {
		if err := run([]string{dir}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cnibox-old.8"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{dir}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(applets.All()) {
		t.Errorf("%v, %v, want a page for each of %d applets", files, err, len(applets.All()))
	}
	read := func(name string) string {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(page), `\-`, "-")
	}
	for name, want := range map[string]string{"cnibox-bridge.8": "\n.B isGateway\n", "cnibox.8": "\n.B cnibox-bridge(8)\n"} {
		if page := read(name); !strings.HasPrefix(page, ".TH ") || !strings.Contains(page, want) {
			t.Errorf("%s lacks %q:\n%s", name, want, page)
		}
	}
	page, m := read("cni-exec.8"), cniexec.NewManual()
	items := m.Flags
	for _, v := range m.Verbs {
		items = append(append(items, cniexec.ManualTerm{Term: v.Usage}), v.Flags...)
		for _, e := range v.Examples {
			if !strings.Contains(page, "\n"+e.Term+"\n") {
				t.Errorf("cni-exec.8 lacks the example %s", e.Term)
			}
		}
	}
	for _, item := range items {
		if !strings.Contains(strings.ReplaceAll(page, `\[u2026]`, "…"), "\n.TP\n.B "+item.Term+"\n") {
			t.Errorf("cni-exec.8 lacks %s", item.Term)
		}
	}
}
