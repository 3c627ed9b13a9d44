package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
)

func names() (list []string) {
	for _, a := range applets.All() {
		list = append(list, a.Name)
	}
	return list
}

// tagOf is the build tag that leaves an applet out.
func tagOf(applet string) string { return "no_" + strings.ReplaceAll(applet, "-", "_") }

// tags are those that this program was built with.
func tags() []string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return strings.Split(s.Value, ",")
		}
	}
	return nil
}

// TestAppletsGolden makes a missing or new applet a decision. One that was left
// out by its tag is not missing.
func TestAppletsGolden(t *testing.T) {
	const file = "testdata/applets.golden"
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(names(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	left := tags()
	want := slices.DeleteFunc(strings.Fields(string(golden)), func(name string) bool { return slices.Contains(left, tagOf(name)) })
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("got the applets %q, want %q (go test -run AppletsGolden -update .)", got, want)
	}
}

// TestAppletsHaveTags looks at the file that registers a plugin: its tag leaves
// it out, and it alone. Tools are always there.
func TestAppletsHaveTags(t *testing.T) {
	files, err := filepath.Glob("applets/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		name := registered(f)
		if a, ok := applets.Lookup(name); name == "" || ok && a.Main != nil {
			continue
		}
		want := "//go:build !" + tagOf(name)
		if got := f.Comments[0].List[0].Text; got != want || !constraint.IsGoBuild(got) {
			t.Errorf("%s registers %s, so its first line is %q and not %q", path, name, want, got)
		}
	}
}

// registered is the name of the applet that a file enters into the table; empty: none.
func registered(f *ast.File) (name string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || name != "" {
			return name == ""
		}
		if fn, ok := call.Fun.(*ast.Ident); !ok || fn.Name != "register" {
			return true
		}
		ast.Inspect(call, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok || name != "" {
				return name == ""
			}
			key, isKey := kv.Key.(*ast.Ident)
			if value, ok := kv.Value.(*ast.BasicLit); ok && isKey && key.Name == "Name" {
				name = strings.Trim(value.Value, `"`)
			}
			return true
		})
		return false
	})
	return name
}
