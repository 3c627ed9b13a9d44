package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"flag"
	"go/ast"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

// permittedImports are the arrows of docs/architecture.md. Plugins and tools may import
// pluginImports, every package may import leaves, and tests may import anything.
var permittedImports = map[string][]string{
	"cnibox": {"cnibox/applets"},

	"cnibox/applets":           {"cnibox/applets/applet", "cnibox/applets/builtin"},
	"cnibox/applets/builtin":   {"cnibox/applets/applet"}, // and each plugin, in with_NAME.go
	"cnibox/applets/applet":    {"cnibox/chain", "cnibox/spec"},
	"cnibox/applets/attach":    {"cnibox/applets/frame", "cnibox/applets/netfilter", "cnibox/applets/record", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/frame":     {"cnibox/internal/undo", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/hostport":  {"cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/lint":      {"cnibox/applets/applet", "cnibox/chain", "cnibox/spec"},
	"cnibox/applets/netfilter": {"cnibox/nft", "cnibox/spec"},
	"cnibox/applets/subnet":    {"cnibox/rtnl"},
	"cnibox/applets/record":    {"cnibox/internal/flock", "cnibox/spec"},
	"cnibox/applets/tap":       slices.Concat(pluginImports, []string{"cnibox/internal/program"}),
	"cnibox/applets/chained":   {"cnibox/applets/frame", "cnibox/applets/record", "cnibox/internal/flock", "cnibox/rtnl", "cnibox/spec"},

	"cnibox/applets/cniexec":            slices.Concat(pluginImports, []string{"cnibox/nft/foreign", "cnibox/internal/program", "cnibox/applets/cniexec/attachfile", "cnibox/applets/cniexec/defaultnet", "cnibox/applets/cniexec/doctor", "cnibox/applets/cniexec/dryrun", "cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/inventory", "cnibox/applets/cniexec/sandbox", "cnibox/applets/cniexec/trace", "cnibox/applets/cniexec/watch"}),
	"cnibox/applets/cniexec/attachfile": {"cnibox/applets/cniexec/sandbox", "cnibox/applets/record", "cnibox/chain", "cnibox/spec"},
	"cnibox/applets/cniexec/defaultnet": {"cnibox/applets/cniexec/sandbox", "cnibox/applets/record", "cnibox/applets/subnet", "cnibox/chain"},
	"cnibox/applets/cniexec/doctor":     {"cnibox/applets/applet", "cnibox/applets/attach", "cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/inventory", "cnibox/applets/cniexec/sandbox", "cnibox/applets/cniexec/trace", "cnibox/applets/hostport", "cnibox/applets/lint", "cnibox/applets/record", "cnibox/chain", "cnibox/internal/tty", "cnibox/ipam", "cnibox/nft", "cnibox/nft/foreign", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/dryrun":     {"cnibox/applets/applet", "cnibox/applets/cniexec/inventory", "cnibox/applets/cniexec/sandbox", "cnibox/applets/netfilter", "cnibox/chain", "cnibox/internal/program", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/hint":       {"cnibox/chain", "cnibox/internal/program", "cnibox/internal/tty", "cnibox/spec"},
	"cnibox/applets/cniexec/inventory":  {"cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/sandbox", "cnibox/applets/netfilter", "cnibox/applets/record", "cnibox/chain", "cnibox/ipam", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/watch":      {"cnibox/internal/dbus", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/trace":      {"cnibox/nft", "cnibox/nft/foreign", "cnibox/rtnl"},
	"cnibox/applets/cniexec/sandbox":    {"cnibox/applets/applet", "cnibox/applets/cniexec/hint", "cnibox/applets/record", "cnibox/chain", "cnibox/internal/flock", "cnibox/internal/program", "cnibox/rtnl", "cnibox/spec"},

	"cnibox/chain":             {"cnibox/spec", "cnibox/internal/flock", "cnibox/internal/program"},
	"cnibox/ipam":              {"cnibox/spec", "cnibox/internal/fault", "cnibox/internal/flock"},
	"cnibox/ipam/dhcp":         {"cnibox/rtnl"}, // client and leases, without CNI
	"cnibox/nft":               {"cnibox/nft/internal/wire", "cnibox/spec", "cnibox/internal/flock", "cnibox/internal/nlconn"},
	"cnibox/nft/foreign":       {"cnibox/nft", "cnibox/nft/internal/wire", "cnibox/spec", "cnibox/internal/nlconn"},
	"cnibox/nft/internal/wire": {"cnibox/internal/fault", "cnibox/internal/nlconn"},
	"cnibox/rtnl":              {"cnibox/internal/fault", "cnibox/internal/nlconn"},
	"cnibox/spec":              {},

	// Packages with changes that tests can make fail, or with work that they count, besides rtnl and nft
	"cnibox/internal/disk":   {"cnibox/internal/fault"},
	"cnibox/internal/fault":  {},
	"cnibox/internal/flock":  {"cnibox/internal/fault"},
	"cnibox/internal/netns":  {"cnibox/internal/fault"},
	"cnibox/internal/nlconn": {"cnibox/internal/fault"},

	"cnibox/internal/session": {"cnibox/internal/nlconn"},

	"cnibox/internal/dbus":    {},
	"cnibox/internal/program": {"cnibox/spec"},
	"cnibox/internal/tty":     {"cnibox/spec"},
	"cnibox/internal/undo":    {"cnibox/rtnl", "cnibox/spec"},
}

// pluginImports are what plugins and tools may import. No plugin imports another.
var pluginImports = []string{
	"cnibox/applets/applet", "cnibox/applets/attach", "cnibox/applets/frame", "cnibox/applets/hostport", "cnibox/applets/lint", "cnibox/applets/netfilter",
	"cnibox/applets/record", "cnibox/applets/chained", "cnibox/applets/subnet",
	"cnibox/chain", "cnibox/ipam", "cnibox/ipam/dhcp", "cnibox/nft", "cnibox/rtnl", "cnibox/spec",
	"cnibox/internal/dbus", "cnibox/internal/flock", "cnibox/internal/tty", "cnibox/internal/undo",
}

// leaves may be imported by every package. They import only each other and fault.
var leaves = []string{"cnibox/internal/disk", "cnibox/internal/interrupt", "cnibox/internal/launcher", "cnibox/internal/memory", "cnibox/internal/netns", "cnibox/internal/session", "cnibox/internal/spell", "cnibox/internal/state"}

// isPlugin reports whether a file with_NAME.go registers the package.
func isPlugin(path string) bool {
	_, err := os.Stat("applets/builtin/with_" + filepath.Base(path) + ".go")
	return filepath.Dir(path) == "cnibox/applets" && err == nil
}

// A pkg is a package as printed by `go list -json`.
type pkg struct {
	ImportPath string
	Imports    []string
}

// packages lists the packages of the binary.
func packages(t *testing.T) (list []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", ".").Output()
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
		p.ImportPath = short(p.ImportPath)
		for i := range p.Imports {
			p.Imports[i] = short(p.Imports[i])
		}
		list = append(list, p)
	}
}

// short is the path of a package as the plan has it, without the module's home.
func short(path string) string { return strings.TrimPrefix(path, "github.com/cnibox/") }

// The module's path is the home that recipes, manifests and documents name.
func TestHome(t *testing.T) {
	file, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	home := string(regexp.MustCompile(`^module (\S+)`).FindSubmatch(file)[1])
	named := regexp.MustCompile(`(?:github\.com|ghcr\.io)/[\w-]+/cnibox\b`)
	found := 0
	for _, dir := range []string{"dist", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "REUSE.toml", ".github"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, other := range named.FindAllString(string(text), -1) {
				if found++; strings.Replace(other, "ghcr.io", "github.com", 1) != home {
					t.Errorf("%s names %s, the module is %s", path, other, home)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if found < 10 {
		t.Errorf("the home is named %d times", found)
	}
}

func isOurs(path string) bool { return path == "cnibox" || strings.HasPrefix(path, "cnibox/") }

func TestImportsPermitted(t *testing.T) {
	for _, p := range packages(t) {
		if !isOurs(p.ImportPath) {
			continue
		}
		allowed, ok := permittedImports[p.ImportPath]
		switch {
		case ok || slices.Contains(leaves, p.ImportPath):
		case isPlugin(p.ImportPath):
			allowed = pluginImports
		default:
			t.Errorf("package %s is not in the plan", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if p.ImportPath == "cnibox/applets/builtin" && isPlugin(imported) {
				continue
			}
			if isOurs(imported) && !slices.Contains(leaves, imported) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// Flows, tools and what they share know facts of plugins, and no plugin by its name.
func TestNoPluginIsKnownByName(t *testing.T) {
	list, err := os.ReadFile("testdata/applets.golden")
	if err != nil {
		t.Fatal(err)
	}
	// links, as the kernel calls them, the default network, and what libcni gives to VERSION
	kinds := []string{"bridge", "vlan"}
	permitted := map[string][]string{
		"applets/cniexec/defaultnet/defaultnet.go": {"host-local", "portmap", "tuning"},
		"chain/version.go":                         {"dummy"},
	}
	names := slices.DeleteFunc(strings.Fields(string(list)), func(name string) bool {
		return isTool(name) || slices.Contains(kinds, name)
	})
	for _, dir := range []string{"applets/applet", "applets/attach", "applets/chained", "applets/cniexec", "applets/frame", "applets/lint", "applets/record", "chain", "spec"} {
		eachSource(t, dir, func(path string, file *ast.File, _ *token.FileSet) {
			if strings.HasSuffix(path, "_test.go") {
				return
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, _ := strconv.Unquote(lit.Value)
				if slices.Contains(names, text) && !slices.Contains(permitted[path], text) {
					t.Errorf("%s names the plugin %s", path, text)
				}
				return true
			})
		})
	}
	if len(names) < 10 {
		t.Errorf("the plugins are %q", names)
	}
}

// isTool reports whether an applet is a tool, and not a plugin.
func isTool(name string) bool { return name == "cnibox" || name == "cni-exec" || name == "netavark" }

// The binary that `make build` makes is static: it needs no dynamic loader and no shared library.
func TestBinaryIsStatic(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cnibox")
	out, err := exec.Command("make", "-s", "build", "BIN="+file).CombinedOutput()
	if err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
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
