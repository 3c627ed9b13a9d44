package cniexec

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// forged has escape sequences for the window title, a colour (as a C1 character) and the writing
// direction, and a second line that imitates a message of cni-exec.
const forged = "\x1b]0;x\x07\u009b31m\u202e\ncni-exec: all is well"

// runIn runs cni-exec with a directory for configurations, plugins and the cache.
func runIn(t *testing.T, dir string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	dummy := &applet.Applet{Name: "dummy", Plugin: func() spec.Plugin {
		return spec.Plugin{Facts: spec.Facts{Interface: true}}
	}}
	if args[0] != completeVerb {
		args = append(args, "--conf-dir", dir, "--cache-dir", filepath.Join(dir, "cache"), "--path", dir)
	}
	run(t.Context(), applet.Process{
		Args: args, Getenv: noEnv, Environ: os.Environ(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Applets: applet.Table{dummy},
	})
	return out.String(), errs.String()
}

// Names, files, operands and the output of plugins cannot control a terminal, nor imitate a line of
// cni-exec.
func TestOutputIsPrintable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	quoted := strings.NewReplacer("\x1b", `\u001b`, "\x07", `\u0007`, "\n", `\n`).Replace(forged)
	write("broken"+forged+".conflist", `{"name":"broken",}`, 0o600)
	write("file"+forged+".conflist", `{"cniVersion":"1.1.0","name":"file","plugins":[{"type":"dummy","key":1}]}`, 0o600)
	write("name.conflist", `{"cniVersion":"1.1.0","name":"`+quoted+`","plugins":[{"type":"dummy"}]}`, 0o600)
	write("net.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"ext"}]}`, 0o600)
	write("answer.conflist", `{"cniVersion":"1.1.0","name":"answer","plugins":[{"type":"answer"}]}`, 0o600)
	write("warns.conflist", `{"cniVersion":"1.1.0","name":"warns","plugins":[{"type":"warns"}]}`, 0o600)
	write("itself.conflist", `{"cniVersion":"1.1.0","name":"itself","plugins":[{"type":"itself"}]}`, 0o600)
	write("itself", "#!/bin/sh\nprintf 'itself: one\ntwo' >&2\n", 0o700)
	octal := strings.NewReplacer("\x1b", `\033`, "\x07", `\007`, "\n", `\n`).Replace(forged)
	write("ext", "#!/bin/sh\nprintf '"+octal+"' >&2\nexit 1\n", 0o700)
	write("warns", "#!/bin/sh\nprintf '"+octal+"' >&2\n", 0o700)
	write("answer", "#!/bin/sh\ncat <<'END'\n"+`{"code":50,"msg":"`+quoted+`","details":"`+quoted+`"}`+"\nEND\nexit 1\n", 0o700)
	for _, args := range [][]string{
		{forged},
		{"add", forged, "/proc/self/ns/net"},
		{"add", "net", "/run/" + forged},
		{"add", "net", "x" + forged},
		{"lint"},
		{"lint", "-o", "json"},
		{"lint", "/nosuch" + forged},
		{"status", "broken"},
		{"status", "file"},
		{"status", "net", "-o", "json"},
		{"status", "answer", "-o", "json"},
		{"status", "warns"},
		{"status", "itself"},
		{"show", forged},
		{"who", forged},
		{"up", "--file", "/nosuch" + forged},
		{"version", "net"},
		{completeVerb, "--conf-dir", dir, "status", ""},
	} {
		stdout, stderr := runIn(t, dir, args...)
		if stdout+stderr == "" {
			t.Errorf("%q prints nothing", args)
		}
		for line := range strings.Lines(stdout + stderr) {
			line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "\t") // the description of a completion follows the tab
			if line != spec.Printable(line) || strings.HasPrefix(line, "cni-exec: all is well") {
				t.Errorf("%q prints %q", args, line)
			}
		}
	}
	if _, stderr := runIn(t, dir, "status", "itself"); stderr != "itself: one\nitself: two\n" {
		t.Errorf("what a plugin has written is passed on as %q", stderr)
	}
	stdout, _ := runIn(t, dir, "lint", "-o", "json")
	var doc struct{ Findings []struct{ File string } }
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || len(doc.Findings) == 0 || !strings.Contains(stdout, `\u202e`) {
		t.Fatalf("%v: %s", err, stdout)
	}
	if got, want := doc.Findings[0].File, filepath.Join(dir, "broken"+forged+".conflist"); got != want {
		t.Errorf("the document has the file %q, want %q", got, want)
	}
}

// The value of a field is printed on one line.
func TestFieldsOfOneLine(t *testing.T) {
	c := &call{Process: applet.Process{Getenv: noEnv}}
	if text := c.fields([]field{single("namespace", forged)}); strings.Count(text, "\n") != 1 {
		t.Errorf("got %q", text)
	}
}

// Quoted values in messages are truncated.
func TestLongValue(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 5000)
	if err := os.WriteFile(filepath.Join(dir, "a.conflist"), []byte(`{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"`+long+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr := runIn(t, dir, "status", "a", "-o", "json")
	for _, text := range []string{stdout, stderr} {
		if n := strings.Count(text, "x"); n > 250 || n < 90 {
			t.Errorf("%d bytes of the value in %q", n, text)
		}
	}
}

// A verb that has nothing to print says so on a terminal, and prints nothing in a pipe.
func TestNothingOnTerminal(t *testing.T) {
	kerneltest.Native(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.conflist"), []byte(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"dummy"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ line, want string }{
		{"ls", "nothing is attached"},
		{"ls --networks --conf-dir /nonexistent", `no network is configured in /nonexistent: the built-in network "cnibox" is used`},
		{"check", "0 attachments checked, nothing is wrong"},
		{"gc", "nothing to delete"},
	} {
		args := append(strings.Fields(tt.line), "--state-dir", dir)
		if !strings.Contains(tt.line, "--conf-dir") {
			args = append(args, "--conf-dir", dir)
		}
		var pipe, errs bytes.Buffer
		p := applet.Process{Args: args, Getenv: noEnv, Environ: os.Environ(), Stdin: strings.NewReader(""), Stdout: &pipe, Stderr: &errs}
		if exit := run(t.Context(), p); exit != exitOK || pipe.Len() > 0 {
			t.Errorf("%s: exit code %d, in a pipe %q: %s", tt.line, exit, pipe.String(), errs.String())
		}
		master, slave := kerneltest.Terminal(t)
		shown := make(chan []byte)
		go func() {
			out, _ := io.ReadAll(master) // EIO when the slave is closed
			shown <- out
		}()
		p.Stdout = slave
		run(t.Context(), p)
		if err := slave.Close(); err != nil {
			t.Fatal(err)
		}
		if out := string(<-shown); !strings.HasPrefix(out, tt.want) {
			t.Errorf("%s: on a terminal %q, want %q", tt.line, out, tt.want)
		}
	}
}
