package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden lists")

// Each package, parsed as by its package manager, is complete and runs nothing. That of Debian, which
// `make test-packages` installs, is as its golden list.
func TestPackages(t *testing.T) {
	r, common := forTest(t)
	for _, f := range formats {
		u := unpack(t, r, f, common)
		t.Run(f.name+"/whole", func(t *testing.T) { checkComplete(t, r, f, u) })
		t.Run(f.name+"/scripts", func(t *testing.T) {
			if len(u.scripts) > 0 {
				t.Errorf("it runs scripts as root: %v", u.scripts)
			}
		})
	}
}

// TestDebianGolden compares files, owners, modes and relations to other packages.
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

// checkApplets checks that a directory has a file for each applet, whose one line has the kernel start the binary that is
// installed in bindir.
func checkApplets(t *testing.T, root, dir, bindir string, read func(path string) string) {
	t.Helper()
	names, err := os.ReadFile(root + "/testdata/applets.golden")
	must(t, err)
	for name := range strings.FieldsSeq(string(names)) {
		if got, want := read(dir+"/"+name), "#!"+bindir+"/cnibox\n"; name != "cnibox" && got != want {
			t.Errorf("%s/%s is %q, want %q", dir, name, got, want)
		}
	}
}

// checkComplete checks that root owns all and that no one else may write to it, that each applet has a file,
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
	checkApplets(t, r.root, f.plugins, f.plugins, func(path string) string { return string(has[path].data) })
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
