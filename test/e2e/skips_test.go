package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

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
