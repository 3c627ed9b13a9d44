package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

// edges are who may import whom of ours: the arrows of the plan of the rooms.
// The packages of leaves may be imported by all, and tests are free.
var edges = map[string][]string{
	"cnibox":                {"cnibox/applets"},
	"cnibox/applets":        {"cnibox/applets/attach", "cnibox/chain", "cnibox/dhcp", "cnibox/ipam", "cnibox/nft", "cnibox/rtnl", "cnibox/spec", "cnibox/internal/dbus", "cnibox/internal/flock"},
	"cnibox/applets/attach": {"cnibox/rtnl", "cnibox/spec"},
	"cnibox/chain":          {"cnibox/spec", "cnibox/internal/flock"},
	"cnibox/dhcp":           {"cnibox/rtnl"}, // a client and its leases; CNI is the applet's part
	"cnibox/ipam":           {"cnibox/spec", "cnibox/internal/flock"},
	"cnibox/nft":            {"cnibox/rtnl", "cnibox/spec", "cnibox/internal/flock", "cnibox/internal/netlink"},
	"cnibox/rtnl":           {"cnibox/internal/netlink"},
	"cnibox/spec":           {},
	"cnibox/internal/fault": {},
	"cnibox/internal/flock": {},

	"cnibox/internal/dbus":    {},
	"cnibox/internal/netlink": {},
}

// leaves know nothing of ours and serve every room.
var leaves = []string{"cnibox/internal/boot", "cnibox/internal/disk", "cnibox/internal/fault", "cnibox/internal/json", "cnibox/internal/mac", "cnibox/internal/sha512"}

// outside are the packages that only some of ours may import, by prefix.
var outside = map[string][]string{
	"os/signal": {"cnibox", "cnibox/applets"},
}

// banned must not be in the binary at all, by whatever way: they are big, or
// do work at every start.
var banned = []string{"net", "net/http", "os/exec", "runtime/debug", "regexp", "log/slog", "text/template", "encoding/gob", "testing", "crypto/tls", "encoding/json"}

// modules are those that go.mod may name without "indirect".
var modules = []string{
	"golang.org/x/sys",
	"github.com/insomniacslk/dhcp", "github.com/godbus/dbus/v5",
}

// A pkg is what `go list -json` tells of a package.
type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
	Module     *struct {
		Path     string
		Indirect bool
	}
}

// packages lists what the binary is made of.
func packages(t *testing.T) (list []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Standard,Module", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func isOurs(path string) bool { return path == "cnibox" || strings.HasPrefix(path, "cnibox/") }

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains(banned, p.ImportPath) {
			t.Errorf("%s is in the binary (`go mod why`, or `go list -deps`)", p.ImportPath)
		}
		if !isOurs(p.ImportPath) {
			continue
		}
		allowed, ok := edges[p.ImportPath]
		ok = ok || slices.Contains(leaves, p.ImportPath)
		if !ok {
			t.Errorf("package %s is not in the plan", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if isOurs(imported) && !slices.Contains(leaves, imported) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
			for prefix, who := range outside {
				if (imported == prefix || strings.HasPrefix(imported, prefix+"/")) && !slices.Contains(who, p.ImportPath) {
					t.Errorf("%s imports %s, which is for %s", p.ImportPath, imported, who)
				}
			}
		}
	}
}

// TestModules looks at what is linked, whatever go.mod says of it, and at what
// go.mod requires directly.
func TestModules(t *testing.T) {
	own := map[string]bool{} // modules that a package of ours imports
	list := packages(t)
	module := map[string]string{}
	for _, p := range list {
		if p.Module != nil {
			module[p.ImportPath] = p.Module.Path
		}
	}
	for _, p := range list {
		for _, imported := range p.Imports {
			if m := module[imported]; isOurs(p.ImportPath) && m != "" && m != "cnibox" {
				own[m] = true
			}
		}
	}
	for m := range own {
		if !slices.Contains(modules, m) {
			t.Errorf("module %s is used and not among those decided for", m)
		}
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		words := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(words) == 2 && strings.HasPrefix(words[1], "v") && !slices.Contains(modules, words[0]) {
			t.Errorf("go.mod requires %s directly", words[0])
		}
	}
}

// source parses the Go files below a folder, tests too if asked for.
func source(t *testing.T, dir string, tests bool) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	fset, files := token.NewFileSet(), map[string]*ast.File{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || (!tests && strings.HasSuffix(path, "_test.go")) {
			return err
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		files[path] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fset, files
}

// forbidden are what no applet may use: it gets all of that in its Process or
// its Request, and so can run inside another one's process.
var forbidden = []string{
	"os.Getenv", "os.LookupEnv", "os.Environ", "os.Setenv", "os.Unsetenv", "os.Clearenv", "os.Stdin", "os.Stdout", "os.Stderr",
	"os.Exit", "os.Args", "os.Chdir", "fmt.Print", "fmt.Printf", "fmt.Println", "fmt.Scan", "fmt.Sscan", "fmt.Sscanf",
}

func TestAppletsAreFunctionsOfTheirRequest(t *testing.T) {
	fset, files := source(t, "applets", false)
	vars := map[string]bool{} // of each package: "dir name"
	for path, f := range files {
		for _, imp := range f.Imports {
			if imp.Path.Value == `"log"` {
				t.Errorf("%s imports log", path)
			}
		}
		for _, decl := range f.Decls {
			if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					for _, name := range s.(*ast.ValueSpec).Names {
						vars[filepath.Dir(path)+" "+name.Name] = true
					}
				}
			}
		}
	}
	// register fills the table before main starts.
	delete(vars, "applets table")
	for path, f := range files {
		dir := filepath.Dir(path)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && slices.Contains(forbidden, x.Name+"."+n.Sel.Name) {
					t.Errorf("%s: %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					if root := rootOf(left); n.Tok != token.DEFINE && root != "" && vars[dir+" "+root] {
						t.Errorf("%s: package variable %s changes", fset.Position(n.Pos()), root)
					}
				}
			case *ast.IncDecStmt:
				if root := rootOf(n.X); vars[dir+" "+root] {
					t.Errorf("%s: package variable %s changes", fset.Position(n.Pos()), root)
				}
			}
			return true
		})
	}
}

// rootOf is the name at the left end of x.f, x[i] and *x.
func rootOf(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x.Name
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return ""
		}
	}
}

// onlyIn are the calls that one file alone may make: where a thread changes its
// namespace, and where a program is started.
var onlyIn = map[string]string{
	"Setns": "rtnl/netns.go", "ForkExec": "chain/program.go", "StartProcess": "", "Exec": "",
}

func TestOnePlace(t *testing.T) {
	fset, files := source(t, ".", false)
	for path, f := range files {
		if strings.HasPrefix(path, "internal/bench/") {
			continue // a tool
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if file, ok := onlyIn[sel.Sel.Name]; ok && file != path {
					t.Errorf("%s: %s is for %q alone", fset.Position(n.Pos()), sel.Sel.Name, file)
				}
			}
			return true
		})
	}
}

// TestLengths keeps files and functions readable.
func TestLengths(t *testing.T) {
	fset, files := source(t, ".", true)
	for path, f := range files {
		most := 400
		if strings.HasSuffix(path, "_test.go") {
			most = 600
		}
		if n := fset.Position(f.FileEnd).Line; n > most {
			t.Errorf("%s has %d lines, over %d: two subjects?", path, n, most)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || most == 600 {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > 60 {
				t.Errorf("%s: %s has %d lines", fset.Position(fn.Pos()), fn.Name.Name, n)
			}
		}
	}
}

// TestBinary builds as `make build` does: small enough, and static.
func TestBinary(t *testing.T) {
	const budget = 4_000_000 // bytes, on amd64
	file := filepath.Join(t.TempDir(), "cnibox")
	out, err := exec.Command("make", "-s", "build", "BIN="+file).CombinedOutput()
	if err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of %d", st.Size(), budget)
	if runtime.GOARCH == "amd64" && st.Size() > budget {
		t.Errorf("the binary has %d bytes, over %d", st.Size(), budget)
	}
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has a segment %s", p.Type)
		}
	}
}
