package main

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden lists")

// Each package, parsed as by its package manager, is complete and has working scripts. That of Debian, which
// `make test-packages` installs, is as its golden list, down to the text of its scripts.
func TestPackages(t *testing.T) {
	r, common := forTest(t)
	for _, f := range formats {
		u := unpack(t, r, f, common)
		t.Run(f.name+"/whole", func(t *testing.T) { checkComplete(t, r, f, u) })
		if f.opt {
			t.Run(f.name+"/scripts", func(t *testing.T) { scripts(t, f, u) })
		}
	}
}

// TestDebianGolden compares files, owners, modes, relations to other packages and scripts.
func TestDebianGolden(t *testing.T) {
	r, common := forTest(t)
	const path = "testdata/deb.golden"
	got := unpack(t, r, formats[0], common).String()
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("not as %s; `go test . -update` writes it anew:\n%s", path, difference(string(want), got))
	}
}

var program = regexp.MustCompile(`(?:/[\w.-]+)+/(?:cnibox|cni-exec)\b`)

// checkApplets checks that a directory has a link for each applet.
func checkApplets(t *testing.T, root, dir string, target func(path string) string) {
	t.Helper()
	names, err := os.ReadFile(root + "/testdata/applets.golden")
	must(t, err)
	for name := range strings.FieldsSeq(string(names)) {
		if got := target(dir + "/" + name); name != "cnibox" && got != "cnibox" {
			t.Errorf("%s/%s is a link to %q, want cnibox", dir, name, got)
		}
	}
}

// checkComplete checks that root owns all and that no one else may write to it, that each applet is linked,
// that links have targets, that units and init scripts start programs of the package, and that it takes the
// place of the reference's.
func checkComplete(t *testing.T, r *release, f format, u unpacked) {
	binary, err := os.ReadFile(r.host)
	must(t, err)
	has := map[string]entry{}
	for _, e := range u.files {
		has[e.name] = e
	}
	if !bytes.Equal(has[f.plugins+"/cnibox"].data, binary) {
		t.Errorf("%s/cnibox is not what was built", f.plugins)
	}
	checkApplets(t, r.root, f.plugins, func(path string) string { return has[path].target })
	for _, name := range f.stands {
		if !strings.Contains(u.about, name) {
			t.Errorf("%s is not in\n%s", name, u.about)
		}
	}
	started := 0
	for _, e := range u.files {
		if e.owner != "root" || e.group != "root" || e.target == "" && e.mode.Perm()&0o022 != 0 {
			t.Errorf("%s has mode %s, owner %s and group %s", e.name, e.mode, e.owner, e.group)
		}
		if to := path.Join(path.Dir(e.name), e.target); e.target != "" && has[to].name == "" {
			t.Errorf("%s leads to %s, which is not in the package", e.name, to)
		}
		if dir := path.Dir(e.name); dir != f.units && dir != "/etc/init.d" {
			continue
		}
		for _, name := range program.FindAllString(string(e.data), -1) {
			if started++; has[name].name == "" && !strings.HasPrefix(name, "/etc/") {
				t.Errorf("%s names %s, which is not in the package", e.name, name)
			}
		}
	}
	if started == 0 {
		t.Error("no unit or init script starts anything")
	}
}

// phases are the arguments with which package managers run the scripts; "": no script is run.
var phases = map[string]struct{ install, leave, upgrade, remove string }{
	"deb":       {"configure", "upgrade 1.2.4", "configure 1.2.3", "remove"},
	"rpm":       {"1", "1", "2", "0"},
	"apk":       {"1.2.3-r1", "", "1.2.4-r1 1.2.3-r1", "1.2.4-r1"},
	"archlinux": {"1.2.3-1", "", "1.2.4-1 1.2.3-1", "1.2.4-1"},
}

// scripts runs a package's scripts in a directory: they add files in /opt/cni/bin for plugins that are
// missing there, also for those of an upgrade, replace the links of earlier packages, and delete no others.
func scripts(t *testing.T, f format, u unpacked) {
	root := t.TempDir()
	plugins, opt := root+f.plugins, root+"/opt/cni/bin"
	run := func(phase, words string) {
		t.Helper()
		text := strings.NewReplacer(f.plugins, plugins, "/opt/cni/bin", opt).Replace(u.script(t, f.name, phase))
		args := append([]string{"-c", text, "script"}, strings.Fields(words)...)
		if out, err := exec.CommandContext(t.Context(), map[bool]string{true: "bash", false: "sh"}[f.name == "archlinux"], args...).CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%s %s: %v: %s", phase, words, err, out)
		}
	}
	names := func(want ...string) {
		t.Helper()
		var got []string
		list, err := os.ReadDir(opt)
		must(t, err)
		for _, e := range list {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s has %v, want %v", opt, got, want)
		}
	}
	line := []byte("#!" + plugins + "/cnibox\n")
	must(t, os.MkdirAll(plugins, 0o755), os.WriteFile(plugins+"/cnibox", nil, 0o755),
		os.WriteFile(plugins+"/bridge", line, 0o755), os.WriteFile(plugins+"/vlan", line, 0o755),
		os.WriteFile(plugins+"/other", nil, 0o755), // of another package
		os.MkdirAll(opt, 0o755), os.WriteFile(opt+"/vlan", []byte("another program"), 0o755))
	run("install", phases[f.name].install)
	names("bridge", "cnibox", "vlan")

	for _, name := range []string{"bridge", "cnibox"} {
		if got, err := os.ReadFile(opt + "/" + name); err != nil || string(got) != string(line) {
			t.Errorf("%s is %q, %v, want %q", name, got, err, line)
		}
	}
	must(t, os.WriteFile(plugins+"/tap", line, 0o755), os.Remove(opt+"/bridge"), os.Symlink(plugins+"/bridge", opt+"/bridge"))
	if words := phases[f.name].leave; words != "" {
		run("remove", words)
	}
	names("bridge", "cnibox", "vlan")
	run("upgrade", phases[f.name].upgrade)
	names("bridge", "cnibox", "tap", "vlan")

	if st, err := os.Lstat(opt + "/bridge"); err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o755 {
		t.Errorf("bridge, a link before, is %v, %v", st, err)
	}

	run("remove", phases[f.name].remove)
	names("vlan")
	if data, err := os.ReadFile(opt + "/vlan"); err != nil || string(data) != "another program" {
		t.Errorf("vlan, which was there before, is %q, %v", data, err)
	}
	must(t, os.Remove(opt+"/vlan"))
	run("install", phases[f.name].install)
	run("remove", phases[f.name].remove)
	if _, err := os.Stat(opt); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s, which is empty, is still there: %v", opt, err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// forTest returns a release of version 1.2.3 with the current product, built for this machine.
func forTest(t *testing.T) (*release, common) {
	t.Helper()
	root, err := filepath.Abs("../..")
	must(t, err)
	dir := t.TempDir()
	r := &release{root: root, stage: dir + "/stage", out: dir + "/out", host: dir + "/cnibox", version: "1.2.3", commit: "0123456789ab",
		time: time.Unix(1e9, 0).UTC(), maintainer: "maintainers <maintainers@example.org>"}
	must(t, os.MkdirAll(r.out, 0o755), r.build(t.Context(), nil, r.host))
	c, err := r.commonFiles(t.Context())
	must(t, err)
	return r, c
}
