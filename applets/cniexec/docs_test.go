package cniexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/dryrun"
)

// verbsTable is the table of verbs in docs/cni-exec.md.
func verbsTable() string {
	var b strings.Builder
	b.WriteString("| verb | operands | |\n|---|---|---|\n")
	for _, v := range shownVerbs() {
		operands := ""
		if v.operands != "" {
			operands = "`" + strings.ReplaceAll(v.operands, "|", `\|`) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, operands, v.summary)
	}
	return b.String()
}

// golden compares a file with its expected content; -update writes it.
func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s: %v; `go test -update` writes it:\n%s", file, err, want)
	}
}

// members collects the names of all members of a JSON document.
func members(doc any, names map[string]bool) {
	switch doc := doc.(type) {
	case map[string]any:
		for name, value := range doc {
			names[name] = true
			members(value, names)
		}
	case []any:
		for _, value := range doc {
			members(value, names)
		}
	}
}

// docs/cni-exec.md has all verbs, and each document that a verb prints as JSON, with all members.
func TestDocsHaveVerbsAndJSON(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "cni-exec.md")
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- verbs -->\n", "<!-- end of verbs -->\n"
	before, rest, ok := strings.Cut(string(doc), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the verbs", file)
	}
	golden(t, file, before+begin+verbsTable()+end+after)
	for _, v := range verbsWith("output") { // the verbs with a JSON document
		if !strings.Contains(after, "\n### "+v) {
			t.Errorf("%s has no section about the JSON of %s", file, v)
		}
	}
	findings, err := json.Marshal([]any{ // scripts test their output
		doctor.Finding{}, dryrun.State{}, checkDoc{}, statusDoc{}, bootDoc{}, doctorDoc{}, deletedDoc{}, rmDoc{}, upDoc{Attached: []attachedDoc{{}}},
		reloadDoc{Attachments: []restoredDoc{{}}}, gcDoc{Deleted: []attachmentName{{}}},
	})
	docs := [][]byte{findings}
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		b, readErr := os.ReadFile(file)
		docs, err = append(docs, b), errors.Join(err, readErr)
	}
	names := map[string]bool{}
	for _, text := range docs {
		var doc any
		err = errors.Join(err, json.Unmarshal(text, &doc))
		members(doc, names)
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("%d documents: %v", len(files), err)
	}
	for name := range names {
		if !strings.Contains(after, "`"+name+"`") && !strings.Contains(after, `"`+name+`"`) {
			t.Errorf("%s does not describe the member %q", file, name)
		}
	}
}

// The documents of errors in the command line, in a network and in a file.
func TestJSONOfErrors(t *testing.T) {
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("old.conflist", []byte(`{"cniVersion": "0.4.0", "name": "old", "plugins": [{"type": 5}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, tt := range map[string]struct {
		line string
		exit int
	}{
		"error-usage.json":   {"nosuch -o json", exitUsage},
		"error-network.json": {"status old -o json", exitError},
		"lint.json":          {"lint old.conflist -o json", exitError},
	} {
		var out, errs bytes.Buffer
		args := append(strings.Fields(tt.line), "--conf-dir", ".", "--state-dir", "/nonexistent")
		exit := Applet.Run(t.Context(), applet.Process{Args: args, Getenv: noEnv, Stdout: &out, Stderr: &errs})
		if exit != tt.exit {
			t.Errorf("%s: exit code %d, want %d: %s", tt.line, exit, tt.exit, errs.String())
		}
		golden(t, filepath.Join(testdata, file), out.String())
	}
}
