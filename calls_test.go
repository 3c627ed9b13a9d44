package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A forbidden name of another package, or several.
type forbidden struct {
	name    *regexp.Regexp // import path, dot, name
	instead string
	inTests bool     // forbidden in tests, otherwise in the product
	except  []string // files, or directories
}

var forbiddenNames = []forbidden{
	{
		name:    regexp.MustCompile(`^os\.(Getenv|LookupEnv|Environ|Setenv|Unsetenv|Clearenv|Stdin|Stdout|Stderr|Exit|Args|Chdir)$`),
		instead: "a package gets these from its caller, so that applets can run in one process",
		except:  []string{"main.go", "applets/process.go", "internal/interrupt/interrupt.go"},
	}, {
		name:    regexp.MustCompile(`^fmt\.(Print|Printf|Println|Scan|Sscan|Sscanf)$`),
		instead: "standard output belongs to the result",
	}, {
		name:    regexp.MustCompile(`/unix\.Setns$`),
		instead: "internal/netns/thread.go alone changes a thread's namespace",
		except:  []string{"internal/netns/thread.go"},
	}, {
		name:    regexp.MustCompile(`^(syscall\.(ForkExec|StartProcess|Exec)|os\.StartProcess)$|/unix\.Exec$`),
		instead: "internal/program alone starts programs",
		except:  []string{"internal/program/command.go"},
	}, {
		name:    regexp.MustCompile(`/(netns\.New|unix\.Unmount)$`),
		instead: "kerneltest makes network namespaces, and Delete waits until the kernel has deleted them",
		inTests: true,
		except:  []string{"internal/kerneltest", "internal/netns", "internal/nlconn", "internal/disk", "test/messages"},
	},
}

func TestForbiddenNames(t *testing.T) {
	besides := []string{"test", "dist", "applets/builtin/generate", "internal/kerneltest", "internal/dbus/dbustest"} // not in the binary
	files := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(file) != ".go" {
			return err
		}
		files++
		inTest := strings.HasSuffix(file, "_test.go")
		for name, at := range namesOfOthers(t, file) {
			for _, f := range forbiddenNames {
				if f.name.MatchString(name) && f.inTests == inTest && !within(file, f.except) && (inTest || !within(file, besides)) {
					t.Errorf("%s uses %s: %s", at, name, f.instead)
				}
			}
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}

// within reports whether a path is one of these, or below one of them.
func within(path string, these []string) bool {
	return slices.ContainsFunc(these, func(name string) bool { return path == name || strings.HasPrefix(path, name+"/") })
}

// namesOfOthers returns what a file uses of the packages that it imports, as PATH.NAME, and where.
func namesOfOthers(t *testing.T, file string) map[string]token.Position {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string]string{}
	for _, spec := range f.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = imported
	}
	names := map[string]token.Position{}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && imports[x.Name] != "" {
				names[imports[x.Name]+"."+sel.Sel.Name] = set.Position(sel.Pos())
			}
		}
		return true
	})
	return names
}
