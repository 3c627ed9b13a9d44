package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/product"
)

// makeInstall runs make install and uninstall in dest, with a binary that cannot run here.
type makeInstall struct {
	*testing.T
	bin, dest string
}

func newMakeInstall(t *testing.T) *makeInstall {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	t.Setenv("GOARCH", "") // set in a cross test
	dir := t.TempDir()
	return &makeInstall{T: t, bin: filepath.Join(dir, "bin", "cnibox"), dest: filepath.Join(dir, "a root")}
}

func (m *makeInstall) write(path, text string) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		m.Fatal(err)
	}
}

func (m *makeInstall) run(vars ...string) (string, error) { return m.make("install", vars...) }

func (m *makeInstall) make(target string, vars ...string) (string, error) {
	cmd := exec.Command("make", append([]string{"--no-print-directory", target, "DESTDIR=" + m.dest, "BIN=" + m.bin}, vars...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// launcher is the file of each other name.
const launcher = "#!/opt/cni/bin/cnibox\n"

// installed checks the binary and the file of each other applet.
func (m *makeInstall) installed(binary string) {
	m.Helper()
	dir := filepath.Join(m.dest, "opt", "cni", "bin")
	if b, err := os.ReadFile(filepath.Join(dir, "cnibox")); err != nil || string(b) != binary {
		m.Errorf("cnibox is %q, %v, want %q", b, err, binary)
	}
	want := 0
	for _, name := range product.Names() {
		want++
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		st, statErr := os.Lstat(path)
		if name != "cnibox" && (err != nil || string(text) != launcher || statErr != nil || st.Mode() != 0o755) {
			m.Errorf("%s is %q, %v, %v", name, text, err, st)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != want {
		m.Errorf("%d files in %s, want %d: %v", len(files), dir, want, files)
	}
	m.commands(binary)
}

// commands checks that cnibox and cni-exec are in a directory of PATH.
func (m *makeInstall) commands(binary string) {
	m.Helper()
	dir := filepath.Join(m.dest, "usr", "local", "sbin")
	for _, name := range []string{"cnibox", "cni-exec"} {
		path := filepath.Join(dir, name)
		if b, err := os.ReadFile(path); err != nil || string(b) != binary {
			m.Errorf("%s is %q, %v, want %q", path, b, err, binary)
		}
		if to, err := os.Readlink(path); err != nil || to != "../../../opt/cni/bin/cnibox" {
			m.Errorf("%s: a link to %q, %v", path, to, err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		m.Errorf("there are %v in %s", files, dir)
	}
}

// An existing binary is installed on a machine without go.
func TestMakeInstallWithoutGo(t *testing.T) {
	for _, goTool := range []string{"/nonexistent/go", "false"} {
		m := newMakeInstall(t)
		m.write(m.bin, "built elsewhere")
		bridge := filepath.Join(m.dest, "opt", "cni", "bin", "bridge")
		m.write(bridge, "another bridge")
		if err := os.Symlink("cnibox", filepath.Join(m.dest, "opt", "cni", "bin", "vlan")); err != nil { // of an earlier release
			t.Fatal(err)
		}
		for range 2 { // the second time changes nothing
			if out, err := m.run("GO=" + goTool); err != nil {
				t.Fatalf("GO=%s: %v\n%s", goTool, err, out)
			}
			m.installed("built elsewhere")
		}
	}
}

// Plugins and commands may be in the same directory.
func TestMakeInstallOneDirectory(t *testing.T) {
	m := newMakeInstall(t)
	m.write(m.bin, "built elsewhere")
	if out, err := m.run("GO=/nonexistent/go", "BINDIR=/usr/local/sbin"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range product.Names() {
		path := filepath.Join(m.dest, "usr", "local", "sbin", name)
		want := "#!/usr/local/sbin/cnibox\n"
		if name == "cnibox" {
			want = "built elsewhere"
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v, want %q", path, b, err, want)
		}
	}
}

// What install has made is deleted, and what others have is not. A second time there is nothing to delete.
func TestMakeUninstall(t *testing.T) {
	m := newMakeInstall(t)
	m.write(m.bin, "built elsewhere")
	vars := []string{"GO=/nonexistent/go", "PREFIX=/usr", "UNITDIR=/usr/lib/systemd/system"}
	if out, err := m.run(vars...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	foreign := filepath.Join(m.dest, "opt", "cni", "bin", "bridge")
	m.write(foreign, "another bridge")
	for range 2 {
		if out, err := m.make("uninstall", vars...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var left []string
		if err := filepath.WalkDir(m.dest, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				left = append(left, path)
			}
			return err
		}); err != nil || !slices.Equal(left, []string{foreign}) {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// A binary that does not run here goes into no directory of this machine.
func TestMakeInstallForAnotherMachine(t *testing.T) {
	m := newMakeInstall(t)
	m.write(m.bin, "built elsewhere")
	dest := m.dest
	m.dest = ""
	out, err := m.run("GO=/nonexistent/go", "BINDIR="+strings.ReplaceAll(dest, " ", "-")+"/bin", "SBINDIR="+dest+"/sbin", "DATADIR=")
	if _, statErr := os.Stat(dest); err == nil || !strings.Contains(out, "does not run here") || statErr == nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A path that no #! line can have is refused.
func TestMakeInstallPath(t *testing.T) {
	for _, dir := range []string{"/a b", "plugins"} {
		m := newMakeInstall(t)
		m.write(m.bin, "built elsewhere")
		out, err := m.run("GO=/nonexistent/go", "BINDIR="+dir)
		if _, statErr := os.Stat(m.dest); err == nil || !strings.Contains(out, "BINDIR '"+dir+"' is not an absolute path without spaces") || statErr == nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestMakeInstallForeign installs a binary for another architecture, with pages, whose program runs
// here. The stub of go writes the architecture instead of a binary.
func TestMakeInstallForeign(t *testing.T) {
	m := newMakeInstall(t)
	goTool := filepath.Join(t.TempDir(), "go")
	m.write(goTool, "#!/bin/sh\n[ \"$1\" = build ] || exec go \"$@\"\nwhile [ \"$1\" != -o ]; do shift; done\nprintf %s \"$GOARCH\" >\"$2\"\n")
	t.Setenv("GOARCH", "arm64")
	m.write(m.bin, "of this machine") // must be rebuilt
	if out, err := m.run("GO=" + goTool); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m.installed("arm64")
	if got := m.pages(); len(got) != len(product.Names()) {
		t.Errorf("pages are %v", got)
	}
}

// If a directory exists where a link belongs, nothing is changed.
func TestMakeInstallDirectory(t *testing.T) {
	m := newMakeInstall(t)
	m.write(m.bin, "new")
	dir := filepath.Join(m.dest, "opt", "cni", "bin")
	m.write(filepath.Join(dir, "tuning", "file"), "")
	m.write(filepath.Join(dir, "bridge"), "old")
	out, err := m.run("GO=/nonexistent/go")
	if err == nil || !strings.Contains(out, "tuning is a directory") {
		t.Errorf("%v\n%s", err, out)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("there are %v", files)
	}
	if files, _ := os.ReadDir(filepath.Join(m.dest, "usr", "local", "sbin")); len(files) != 0 {
		t.Errorf("there are %v", files)
	}
}

// pages lists the installed manual pages.
func (m *makeInstall) pages() (names []string) {
	files, _ := os.ReadDir(filepath.Join(m.dest, "usr", "local", "share", "man", "man8"))
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// make install installs completions, and the pages beside the binary or else a page for each applet
// that go writes.
func TestMakeInstallPages(t *testing.T) {
	var all []string
	for _, name := range product.Names() {
		if !strings.HasPrefix(name, "cni") {
			name = "cnibox-" + name
		}
		all = append(all, name+".8")
	}
	slices.Sort(all)
	for name, tt := range map[string]struct {
		written bool
		goTool  string
		want    []string
	}{
		"written":        {true, "/nonexistent/go", []string{"cnibox-bridge.8"}},
		"not written":    {false, "/nonexistent/go", nil},
		"go writes them": {false, "go", all},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMakeInstall(t)
			m.write(m.bin, "built elsewhere")
			if tt.written {
				m.write(m.bin+"-man/cnibox-bridge.8", "page")
			}
			out, err := m.run("GO=" + tt.goTool)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if without := strings.Contains(out, "no manual pages: "); without != (tt.want == nil) {
				t.Errorf("it prints %s", out)
			}
			if got := m.pages(); !slices.Equal(got, tt.want) {
				t.Errorf("pages are %v, want %v", got, tt.want)
			}
			for _, file := range []string{"bash-completion/completions/cni-exec", "zsh/site-functions/_cni-exec", "fish/vendor_completions.d/cni-exec.fish"} {
				if _, err := os.Stat(filepath.Join(m.dest, "usr", "local", "share", file)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// An image can leave out pages and completions.
func TestMakeInstallWithoutPages(t *testing.T) {
	m := newMakeInstall(t)
	m.write(m.bin, "built elsewhere")
	out, err := m.run("GO=/nonexistent/go", "DATADIR=")
	if err != nil || strings.Contains(out, "manual pages") {
		t.Errorf("%v\n%s", err, out)
	}
	if files, _ := os.ReadDir(m.dest); len(files) != 2 { // opt and usr
		t.Errorf("there are %v", files)
	}
	if files, _ := os.ReadDir(filepath.Join(m.dest, "usr")); len(files) != 1 {
		t.Errorf("there are %v", files)
	}
}
