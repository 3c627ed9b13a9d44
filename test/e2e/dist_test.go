package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The scripts in dist are valid, and the command lines of the units are ones that cni-exec takes.
func TestDist(t *testing.T) {
	scripts, _ := filepath.Glob("../../dist/*.openrc")
	more, _ := filepath.Glob("../../dist/*.procd")
	for _, script := range append(scripts, more...) {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	units, _ := filepath.Glob("../../dist/cni-exec-*.service")
	if len(scripts) < 3 || len(more) < 2 || len(units) != 3 {
		t.Fatalf("there are %q, %q and %q", scripts, more, units)
	}
	w := &world{T: t, dir: t.TempDir(), here: true}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, w.path("cni-exec"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range units {
		b, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for line := range strings.Lines(string(b)) {
			_, args, ok := strings.Cut(strings.TrimSpace(line), "=/opt/cni/bin/cni-exec ")
			if !ok {
				continue
			}
			lines++
			w.must(unit+": "+line, w.run("", nil, append(append([]string{w.path("cni-exec")}, strings.Fields(args)...), "--help")...))
		}
		if lines == 0 {
			t.Errorf("%s starts nothing", unit)
		}
	}
}
