package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
)

// copyTree copies the files of the tree that git tracks.
func copyTree(t *testing.T) string {
	t.Helper()
	list, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("SKIPPED: not a clone: %v", err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) { // deleted, and not committed yet
			continue
		}
		if err == nil {
			err = create(filepath.Join(dir, name), text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs a command in a directory and returns its standard output.
func run(t *testing.T, dir string, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	var out, stderr bytes.Buffer
	c.Dir, c.Stdout, c.Stderr = dir, &out, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, &stderr)
	}
	return out.String()
}

// A generated plugin of each kind is in help, completions and manual page, and lint accepts its
// example. An attachment of the chained one shows what it holds, and lint knows its keys and its place
// in a list, without other changes to the tree.
func TestKernelPlugins(t *testing.T) {
	h := applettest.NewHost(t)
	c := h.Container("c1")
	tree := copyTree(t)
	for name, chained := range map[string]bool{"stub-link": false, "mark": true} {
		if err := write(tree, name, chained); err != nil {
			t.Fatal(err)
		}
		if err := write(tree, name, chained); err == nil || !strings.Contains(err.Error(), "is there already") {
			t.Errorf("a second %s: %v", name, err)
		}
	}
	run(t, tree, "go", "generate", "./applets/builtin")
	run(t, tree, "go", "build", "-o", "bin/cnibox", ".")
	run(t, tree, "go", "run", "./dist/man", "bin/man")
	run(t, tree, "go", "build", "-o", os.DevNull, "./applets/applettest")
	bin := filepath.Join(tree, "bin/cnibox")
	for _, link := range []string{"cni-exec", "bridge", "host-local", "mark"} {
		if err := os.Symlink("cnibox", filepath.Join(tree, "bin", link)); err != nil {
			t.Fatal(err)
		}
	}
	tool := filepath.Join(tree, "bin/cni-exec")
	for _, name := range []string{"stub-link", "mark"} {
		for what, text := range map[string]string{
			"help":        run(t, tree, bin, "help"),
			"its help":    run(t, tree, bin, "help", name),
			"completions": run(t, tree, tool, "complete", "--conf-dir", "examples", "add", ""),
			"manual page": strings.ReplaceAll(run(t, tree, "cat", "bin/man/cnibox-"+name+".8"), `\-`, "-"),
		} {
			if !strings.Contains(text, name) {
				t.Errorf("%s is not in %s:\n%s", name, what, text)
			}
		}
		run(t, tree, tool, "lint", "examples/"+name+".conflist")
	}
	for group, name := range map[string]string{"Interface": "stub-link", "Chained": "mark"} {
		if help := run(t, tree, bin, "help"); !regexp.MustCompile(`(?m)^` + group + ` .*\b` + name + `\b`).MatchString(help) {
			t.Errorf("%s is not in the group %s of the help:\n%s", name, group, help)
		}
	}
	wrong := filepath.Join(tree, "wrong.conflist")
	h.NoError(os.WriteFile(wrong, []byte(`{"cniVersion":"1.0.0","name":"wrong","plugins":[{"type":"mark","mtu":1400,"mtus":1},{"type":"stub-link","ipam":{"type":"mark"}}]}`), 0o600))
	out, err := exec.Command(tool, "lint", wrong).CombinedOutput()
	for _, want := range []string{"unknown key \"mtus\"", "mark works on what an earlier plugin made, and is the first of the list", "\"ipam.type\" \"mark\" is not an address plugin"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("lint: %v, without %s:\n%s", err, want, out)
		}
	}
	call := func(args ...string) (out string) {
		t.Helper()
		args = append([]string{"--conf-dir", tree + "/examples", "--path", tree + "/bin", "--state-dir", h.Dir + "/state"}, args...)
		h.NoError(h.NS.Do(func() error {
			out = run(t, tree, tool, args...)
			return nil
		}))
		return out
	}
	call("add", "--container-id", "c1", "mark", c.Path)
	for what, out := range map[string]string{"show": call("show", "c1"), "ls": call("ls", "-o", "wide")} {
		if !strings.Contains(out, "MTU 1400") {
			t.Errorf("%s does not have what mark holds:\n%s", what, out)
		}
	}
	call("check", "--container-id", "c1", "mark", c.Path)
	call("del", "--container-id", "c1", "mark", c.Path)
}
