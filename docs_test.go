package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documented are the rooms in which every type, every exported function and every
// function of more than five lines has a doc comment that begins with its name.
var documented = []string{
	".", "spec", "chain", "ipam", "applets", "applets/attach", "internal/fault", "internal/flock", "internal/mac", "internal/sha512",
	"rtnl", "nft", "dhcp", "internal/netlink", "internal/clients",
	"internal/sandbox", "internal/kerneltest", "internal/script", "internal/bench", "internal/demo", "internal/privileged", "internal/twin",
}

func TestDocComments(t *testing.T) {
	for _, room := range documented {
		files, err := filepath.Glob(filepath.Join(room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("no files in %s: %v", room, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			parsed, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
			if err != nil {
				t.Error(err)
				continue
			}
			for _, d := range parsed.Decls {
				checkDoc(t, fset, d)
			}
		}
	}
}

// TestReadmeLeavesNothing has the README delete each of our tables on the way back to the
// reference plugins.
func TestReadmeLeavesNothing(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inet cnibox", "bridge cnibox"} {
		if !strings.Contains(string(readme), "nft delete table "+table) || !strings.Contains(string(readme), "`"+table+"`") {
			t.Errorf("the README does not say how to delete the table %s", table)
		}
	}
}

// checkDoc looks at one declaration; init and main are what they are called.
func checkDoc(t *testing.T, fset *token.FileSet, d ast.Decl) {
	t.Helper()
	switch d := d.(type) {
	case *ast.FuncDecl:
		lines := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line + 1
		name := d.Name.Name
		if name == "init" || name == "main" || d.Doc == nil && lines <= 5 && !d.Name.IsExported() {
			return
		}
		checkDocName(t, fset.Position(d.Pos()), name, d.Doc)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if typ, ok := s.(*ast.TypeSpec); ok {
				doc := typ.Doc
				if doc == nil {
					doc = d.Doc
				}
				checkDocName(t, fset.Position(typ.Pos()), typ.Name.Name, doc)
			}
		}
	}
}

// checkDocName wants the name as the first word, after an article at most.
func checkDocName(t *testing.T, at token.Position, name string, doc *ast.CommentGroup) {
	t.Helper()
	if doc == nil {
		t.Errorf("%s: %s has no doc comment", at, name)
		return
	}
	text := doc.Text()
	for _, article := range []string{"A ", "An "} {
		text = strings.TrimPrefix(text, article)
	}
	if word := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,;:\n", r) }); len(word) == 0 || word[0] != name {
		t.Errorf("%s: the doc comment of %s does not begin with its name", at, name)
	}
}
