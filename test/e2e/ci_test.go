package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A ciRun runs .ci/run with stubs for all programs: it finds everything installed, and make records
// its targets.
type ciRun struct {
	*testing.T
	calls string // file
	env   []string
}

// newCIRun makes the stubs. make fails for a target that FAILS names, and reports one skipped test
// of test-cross once and another one twice.
func newCIRun(t *testing.T) *ciRun {
	t.Helper()
	text, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile(`(?m)^programs=\((.*)\)$`).FindSubmatch(text)
	if programs == nil {
		t.Fatal(".ci/run has no line programs=(…)")
	}
	dir := t.TempDir()
	c := &ciRun{T: t, calls: filepath.Join(dir, "calls")}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	add := func(name, script string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range append(strings.Fields(string(programs[1])), "sleep", "apt-get", "sudo") {
		if filepath.IsAbs(p) {
			if _, err := os.Stat(p); err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			continue
		}
		add(p, ":")
	}
	add("go", `echo "go $*" >>"$CALLS"; case "go $*" in $FAILS) exit 1 ;; esac`)
	add("make", `echo "$*" >>"$CALLS"
case $1 in test-cross) echo "SKIPPED: no qemu"; echo "    a_test.go:1: SKIPPED: no card"; echo "SKIPPED: no card" ;; esac
case $* in $FAILS) echo "cannot make $*"; exit 1 ;; esac`)
	c.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CALLS="+c.calls)
	return c
}

// run returns the output of the run, its calls of make and go, and its error.
func (c *ciRun) run(fails string) (out, calls string, err error) {
	c.Helper()
	os.Remove(c.calls)
	cmd := exec.Command("../../.ci/run")
	cmd.Env = append(c.env, "FAILS="+fails)
	b, err := cmd.CombinedOutput()
	list, e := os.ReadFile(c.calls)
	if e != nil {
		c.Fatalf("no call: %v\n%s", e, b)
	}
	return string(b), "\n" + string(list), err
}

// Continuous integration passes only if everything was fetched, built and tested. What releases are
// compared with is built before the first test; if that fails the run ends.
func TestCI(t *testing.T) {
	t.Parallel()
	c := newCIRun(t)
	out, calls, err := c.run("nothing")
	if err != nil || !strings.HasSuffix(out, "\nPASS\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"SKIPPED: no card (2 times)", "SKIPPED: no qemu", "2 reasons, 3 skipped"} {
		if !strings.Contains(out, "\n"+want+"\n") {
			t.Errorf("the summary has no %q:\n%s", want, out)
		}
	}
	steps := []string{
		"lint", "vuln", "build-all", "demo", "test FULL=1", "test-race", "test-cross", "test-twin", "test-twin KERNEL=6.1", "test-vm *",
		"test-tour", "test-clients *", "test-nodes *", "test-readme *", "test-openrc *", "test-power *", "test-systemd *",
	}
	for _, step := range steps {
		name, _, _ := strings.Cut(step, " ")
		if !strings.Contains(calls, "\n"+strings.TrimSuffix(step, "*")) || !regexp.MustCompile(`(?m)^ok +\d+ s  `+name+`( .*)?$`).MatchString(out) {
			t.Errorf("step %s was not made, or has no duration:\n%s\n%s", step, calls, out)
		}
		out, calls, err := c.run(step)
		if err == nil || !strings.HasSuffix(out, "\nFAIL\n") || !regexp.MustCompile(`(?m)^FAIL +\d+ s  `+name+`( .*)?$`).MatchString(out) {
			t.Errorf("%s fails: %v\n%s", step, err, out)
		}
		if !strings.Contains(calls, "\ntest-systemd") {
			t.Errorf("%s fails, and the other steps are left out:\n%s", step, calls)
		}
	}
	for _, fetch := range []string{"go list -deps*", "go list -C test*", "reference*", "flanneld*", "base*", "lint LINTARGS*", "vuln VULNARGS*"} {
		out, calls, err := c.run(fetch)
		if err == nil || !strings.HasSuffix(out, "\nFAIL\n") || strings.Contains(calls, "\ntest") {
			t.Errorf("%s cannot be fetched: %v, and\n%s\n%s", fetch, err, calls, out)
		}
		if n := strings.Count(calls, "\n"+strings.TrimSuffix(fetch, "*")); n != 4 {
			t.Errorf("%s was tried %d times, want 4", fetch, n)
		}
	}
}

// `make test` fails if git has the revision to upgrade from and it cannot be built, and reports it
// if git does not have it. The stub of go fails only in that revision's tree.
func TestMakeTestBase(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("git", "-C", "../..", "rev-parse", "HEAD").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no revision: %v: %s", err, out)
	}
	for name, tt := range map[string]struct {
		revision, build string
		fails           bool
		want            string
	}{
		"built":     {"HEAD", "0", false, ""},
		"not built": {"HEAD", "1", true, "FAIL: revision HEAD, to upgrade from, was not built\n"},
		"archive":   {"0000000", "1", false, "SKIPPED: the upgrade from an earlier revision: git has no 0000000 here\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "go")
			script := "#!/bin/sh\ncase $1 in env) echo " + dir + " ;; build)\n" +
				"[ -e .git ] || [ " + tt.build + " = 0 ] || exit 1\n" + // that revision's tree has no .git
				`while [ $# -gt 0 ]; do [ "$1" != -o ] || cp /bin/true "$2"; shift; done ;; esac` + "\n"
			if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("make", "--no-print-directory", "test", "GO="+program, "PRIVILEGED="+filepath.Join(dir, "privileged"), "RELEASE_BEFORE="+tt.revision)
			cmd.Dir, cmd.Env = "../..", append(os.Environ(), "MAKEFLAGS=")
			out, err := cmd.CombinedOutput()
			if (err != nil) != tt.fails || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, want %q in\n%s", err, tt.want, out)
			}
		})
	}
}

// The reason of each skip begins with the words that make and .ci/run search for.
func TestSkipsHaveReasons(t *testing.T) {
	t.Parallel()
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		packages := map[string]bool{}
		for _, i := range f.Imports {
			packages[strings.Trim(i.Path.Value[strings.LastIndexByte(i.Path.Value, '/')+1:], `"`)] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Skip" && method.Sel.Name != "Skipf" && method.Sel.Name != "SkipNow" {
				return true
			}
			if of, ok := method.X.(*ast.Ident); ok && packages[of.Name] {
				return true // a function of a package, not a test's method
			}
			seen++
			if len(call.Args) > 0 {
				if s, ok := call.Args[0].(*ast.BasicLit); ok && strings.HasPrefix(s.Value, `"SKIPPED: `) {
					return true
				}
			}
			t.Errorf("%s: the reason of a skipped test begins with \"SKIPPED: \"", set.Position(call.Pos()))
			return true
		})
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d skips seen, %v", seen, err)
	}
}
