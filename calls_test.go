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

// A forbidden use of another package.
type forbidden struct {
	use     *regexp.Regexp // an import path, or that, a dot and a name
	instead string
	inTests bool     // forbidden in tests, otherwise in all else
	except  []string // files, or directories
}

// others are directories of programs that are not the binary, and of what tests need.
var others = []string{"test", "dist", "applets/builtin/generate", "internal/kerneltest", "internal/dbus/dbustest"}

var forbiddenUses = []forbidden{
	{
		use:     regexp.MustCompile(`^github\.com/(mdlayher/netlink|jsimonetti/rtnetlink|google/nftables)(/|$)`),
		instead: "rtnl and nft speak netlink",
		except:  []string{"rtnl", "nft", "internal/kerneltest", "internal/nfttest", "internal/nlconn"},
	}, {
		use:     regexp.MustCompile(`^log(/slog)?$`),
		instead: "warnings go to Request.Warn",
		except:  others,
	}, {
		use:     regexp.MustCompile(`^os/signal$`),
		instead: "applets.Main turns signals into a context",
		except:  slices.Concat(others, []string{"applets/cniexec", "internal/interrupt"}),
	}, {
		use:     regexp.MustCompile(`^os/exec$|^syscall\.(ForkExec|StartProcess|Exec)$|^os\.StartProcess$|/unix\.Exec$`),
		instead: "internal/program alone starts programs",
		except:  slices.Concat(others, []string{"internal/program", "internal/nfttest", "applets/applettest"}),
	}, {
		use:     regexp.MustCompile(`^os\.(Getenv|LookupEnv|Environ|Setenv|Unsetenv|Clearenv|Stdin|Stdout|Stderr|Exit|Args|Chdir)$`),
		instead: "a package gets these from its caller, so that applets can run in one process",
		except:  slices.Concat(others, []string{"main.go", "applets/process.go", "internal/interrupt/interrupt.go"}),
	}, {
		use:     regexp.MustCompile(`^fmt\.(Print|Printf|Println|Scan|Sscan|Sscanf)$`),
		instead: "standard output belongs to the result",
		except:  others,
	}, {
		use:     regexp.MustCompile(`/unix\.Setns$`),
		instead: "internal/netns/thread.go alone changes a thread's namespace",
		except:  slices.Concat(others, []string{"internal/netns/thread.go"}),
	}, {
		use:     regexp.MustCompile(`/(netns\.New|unix\.Unmount)$`),
		instead: "kerneltest makes network namespaces, and Delete waits until the kernel has deleted them",
		inTests: true,
		except:  []string{"internal/kerneltest", "internal/netns", "internal/nlconn", "internal/disk", "test/messages"},
	},
}

func TestForbiddenUses(t *testing.T) {
	files := 0
	eachSource(t, ".", func(path string, file *ast.File, set *token.FileSet) {
		files++
		for use, at := range uses(file) {
			for _, f := range forbiddenUses {
				if f.use.MatchString(use) && f.inTests == strings.HasSuffix(path, "_test.go") && !within(path, f.except) {
					t.Errorf("%s uses %s: %s", set.Position(at), use, f.instead)
				}
			}
		}
	})
	if files < 100 {
		t.Errorf("%d files", files)
	}
}

// eachSource parses each Go file in a directory and below it.
func eachSource(t *testing.T, dir string, do func(path string, file *ast.File, set *token.FileSet)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(file) != ".go" {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			return err
		}
		do(file, parsed, set)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// within reports whether a path is one of these, or below one of them.
func within(path string, these []string) bool {
	return slices.ContainsFunc(these, func(name string) bool { return path == name || strings.HasPrefix(path, name+"/") })
}

// uses returns the packages that a file imports, and what it uses of them as PATH.NAME, and where.
func uses(file *ast.File) map[string]token.Pos {
	all, imports := map[string]token.Pos{}, map[string]string{}
	for _, spec := range file.Imports {
		name, imported := imported(spec)
		imports[name], all[imported] = imported, spec.Pos()
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && imports[x.Name] != "" {
				all[imports[x.Name]+"."+sel.Sel.Name] = sel.Pos()
			}
		}
		return true
	})
	return all
}

// imported returns the name that a file has for a package, and the package's path.
func imported(spec *ast.ImportSpec) (name, of string) {
	of, _ = strconv.Unquote(spec.Path.Value)
	if spec.Name != nil {
		return spec.Name.Name, of
	}
	return path.Base(of), of
}

// The reason of each skip begins with the words that make and .ci/run search for.
func TestSkipsHaveReasons(t *testing.T) {
	seen := 0
	eachSource(t, ".", func(_ string, file *ast.File, set *token.FileSet) {
		packages := map[string]bool{}
		for _, spec := range file.Imports {
			name, _ := imported(spec)
			packages[name] = true
		}
		ast.Inspect(file, func(n ast.Node) bool {
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
	})
	if seen == 0 {
		t.Error("no skips seen")
	}
}
