package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each recipe builds the source archive without a network, and installs the binary, a link for each applet, and
// links that have targets. testdata/recipes/NAME.sh stands in for the distribution's program and executes the recipe
// as that does.
func TestRecipes(t *testing.T) {
	r, _ := forTest(t)
	must(t, r.source(t.Context()))
	dir := t.TempDir()
	extract(t, filepath.Join(r.out, "cnibox-1.2.3-recipes.tar.gz"), dir)
	recipes := dir + "/cnibox-1.2.3-recipes"
	for _, name := range []string{"alpine", "buildroot", "nix", "openwrt", "yocto"} {
		t.Run(name, func(t *testing.T) {
			if name == "nix" {
				if _, err := exec.LookPath("nix-instantiate"); err != nil {
					t.Skip("SKIPPED: the recipe for Nix: there is no nix-instantiate")
				}
			}
			work, out, archives := t.TempDir(), t.TempDir(), t.TempDir()
			extract(t, filepath.Join(r.out, "cnibox-1.2.3.tar.gz"), work)
			must(t, os.Symlink(filepath.Join(r.out, "cnibox-1.2.3.tar.gz"), archives+"/cnibox-1.2.3.tar.gz"))
			script, err := filepath.Abs("testdata/recipes/" + name + ".sh")
			must(t, err)
			cmd := exec.CommandContext(t.Context(), "bash", script)
			cmd.Dir = work
			cmd.Env = append(os.Environ(), "RECIPES="+recipes, "ARCHIVES="+archives, "WORK="+work, "OUT="+out,
				"GOCACHE="+goCache(t), "GOMODCACHE="+work+"/modules", "GOPROXY=off", "GOFLAGS=", "MAKEFLAGS=", "MAKELEVEL=")
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}

			binary := ""
			must(t, filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				if d.Type().IsRegular() && d.Name() == "cnibox" {
					binary = path
				}
				if _, err := os.Stat(path); err != nil {
					t.Errorf("a link without a target: %v", err)
				}
				return nil
			}))
			if got, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput(); err != nil || !strings.Contains(string(got), "1.2.3") || !strings.Contains(string(got), r.commit) {
				t.Errorf("version: %q, %v; want 1.2.3 and %s", got, err, r.commit)
			}
			bindir := strings.TrimPrefix(filepath.Dir(binary), out)
			if name == "nix" { // which builds in the directory of what is installed
				bindir = filepath.Dir(binary)
			}
			checkApplets(t, r.root, filepath.Dir(binary), bindir, func(path string) string {
				text, err := os.ReadFile(path)
				must(t, err)
				return string(text)
			})
		})
	}
}

// shellcheck accepts Alpine's recipe and the scripts that execute recipes.
func TestShellcheck(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("SKIPPED: there is no shellcheck")
	}
	imitations, err := filepath.Glob("testdata/recipes/*.sh")
	must(t, err)
	for _, words := range [][]string{
		append([]string{"-s", "bash"}, imitations...),
		// abuild reads the variables, and its shell has local.
		{"-s", "dash", "-e", "SC2034,SC2154,SC3043", "../../dist/recipes/alpine/APKBUILD"},
	} {
		if out, err := exec.CommandContext(t.Context(), "shellcheck", words...).CombinedOutput(); err != nil {
			t.Errorf("shellcheck %s: %v\n%s", words, err, out)
		}
	}
}

// The source archive has exactly the files that git tracks, and the modules.
func TestSourceWithoutGit(t *testing.T) {
	r, _ := forTest(t)
	must(t, r.source(t.Context()))
	want, err := os.ReadFile(filepath.Join(r.out, "cnibox-1.2.3.tar.gz"))
	must(t, err)

	copied := *r
	copied.root, copied.stage, copied.out = t.TempDir(), t.TempDir(), t.TempDir()
	files, err := r.tracked(t.Context())
	must(t, err)
	for _, f := range files {
		path := filepath.Join(copied.root, f.name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.data, f.mode))
	}
	must(t, copied.source(t.Context()))
	got, err := os.ReadFile(filepath.Join(copied.out, "cnibox-1.2.3.tar.gz"))
	must(t, err)
	if string(got) != string(want) {
		t.Errorf("without git it has %d bytes, with git %d, and they differ", len(got), len(want))
	}
}

func extract(t *testing.T, archive, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xzf", archive).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}

func goCache(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}
