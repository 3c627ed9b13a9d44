package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

// edges are who may import whom of ours: the arrows of docs/architecture.md. What plugins
// and tools may import is in roomsOfPlugins; the packages of leaves may be imported by all,
// and tests are free.
var edges = map[string][]string{
	"cnibox": {"cnibox/applets"},

	"cnibox/applets":           {"cnibox/applets/applet"}, // and each plugin, in the file with_NAME.go
	"cnibox/applets/applet":    {"cnibox/chain", "cnibox/spec"},
	"cnibox/applets/attach":    {"cnibox/applets/netfilter", "cnibox/internal/undo", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/hostport":  {"cnibox/rtnl"},
	"cnibox/applets/lint":      {"cnibox/applets/applet", "cnibox/chain", "cnibox/spec"},
	"cnibox/applets/netfilter": {"cnibox/nft", "cnibox/spec"},
	"cnibox/applets/record":    {"cnibox/internal/flock", "cnibox/spec"},
	"cnibox/applets/chained":   {"cnibox/applets/record", "cnibox/internal/flock", "cnibox/internal/undo", "cnibox/rtnl", "cnibox/spec"},

	"cnibox/applets/cniexec":           slices.Concat(roomsOfPlugins, []string{"cnibox/applets/cniexec/doctor", "cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/inventory", "cnibox/applets/cniexec/sandbox", "cnibox/applets/cniexec/trace", "cnibox/applets/cniexec/watch"}),
	"cnibox/applets/cniexec/doctor":    {"cnibox/applets/applet", "cnibox/applets/attach", "cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/inventory", "cnibox/applets/cniexec/sandbox", "cnibox/applets/cniexec/watch", "cnibox/applets/hostport", "cnibox/applets/lint", "cnibox/applets/record", "cnibox/chain", "cnibox/internal/dbus", "cnibox/internal/tty", "cnibox/ipam", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/hint":      {"cnibox/chain", "cnibox/spec"},
	"cnibox/applets/cniexec/inventory": {"cnibox/applets/cniexec/hint", "cnibox/applets/cniexec/sandbox", "cnibox/applets/netfilter", "cnibox/applets/record", "cnibox/chain", "cnibox/ipam", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/watch":     {"cnibox/internal/dbus", "cnibox/nft", "cnibox/rtnl", "cnibox/spec"},
	"cnibox/applets/cniexec/trace":     {"cnibox/nft", "cnibox/rtnl"},
	"cnibox/applets/cniexec/sandbox":   {"cnibox/applets/applet", "cnibox/applets/cniexec/hint", "cnibox/applets/record", "cnibox/chain", "cnibox/internal/flock", "cnibox/rtnl", "cnibox/spec"},

	"cnibox/chain":     {"cnibox/spec", "cnibox/internal/flock"},
	"cnibox/ipam":      {"cnibox/spec", "cnibox/internal/flock"},
	"cnibox/ipam/dhcp": {"cnibox/rtnl"}, // a client and its leases; CNI is the plugin's part
	"cnibox/nft":       {"cnibox/spec", "cnibox/internal/fault", "cnibox/internal/flock", "cnibox/internal/nlconn"},
	"cnibox/rtnl":      {"cnibox/internal/fault", "cnibox/internal/nlconn"},
	"cnibox/spec":      {},

	// Changes that tests can make fail are made by these, rtnl and nft.
	"cnibox/internal/disk":  {"cnibox/internal/fault"},
	"cnibox/internal/fault": {},
	"cnibox/internal/netns": {"cnibox/internal/fault"},

	"cnibox/internal/dbus":   {},
	"cnibox/internal/flock":  {},
	"cnibox/internal/nlconn": {},
	"cnibox/internal/tty":    {"cnibox/spec"},
	"cnibox/internal/undo":   {"cnibox/rtnl", "cnibox/spec"},
}

// roomsOfPlugins are what a plugin or a tool may import: no plugin imports another.
var roomsOfPlugins = []string{
	"cnibox/applets/applet", "cnibox/applets/attach", "cnibox/applets/hostport", "cnibox/applets/lint", "cnibox/applets/netfilter",
	"cnibox/applets/record", "cnibox/applets/chained",
	"cnibox/chain", "cnibox/ipam", "cnibox/ipam/dhcp", "cnibox/nft", "cnibox/rtnl", "cnibox/spec",
	"cnibox/internal/dbus", "cnibox/internal/flock", "cnibox/internal/tty", "cnibox/internal/undo",
}

// leaves know nothing of ours, or one another and fault, and serve every room.
var leaves = []string{"cnibox/internal/disk", "cnibox/internal/interrupt", "cnibox/internal/memory", "cnibox/internal/netns", "cnibox/internal/once", "cnibox/internal/spell", "cnibox/internal/state"}

// isPlugin reports whether a file of the table registers the package.
func isPlugin(path string) bool {
	_, err := os.Stat("applets/with_" + filepath.Base(path) + ".go")
	return filepath.Dir(path) == "cnibox/applets" && err == nil
}

// A pkg is what `go list -json` prints of a package.
type pkg struct {
	ImportPath string
	Imports    []string
}

// packages lists what the binary is made of.
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
		list = append(list, p)
	}
}

func isOurs(path string) bool { return path == "cnibox" || strings.HasPrefix(path, "cnibox/") }

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		if !isOurs(p.ImportPath) {
			continue
		}
		allowed, ok := edges[p.ImportPath]
		switch {
		case ok || slices.Contains(leaves, p.ImportPath):
		case isPlugin(p.ImportPath):
			allowed = roomsOfPlugins
		default:
			t.Errorf("package %s is not in the plan", p.ImportPath)
		}
		for _, imported := range p.Imports {
			if p.ImportPath == "cnibox/applets" && isPlugin(imported) {
				continue
			}
			if isOurs(imported) && !slices.Contains(leaves, imported) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// TestStatic builds as `make build` does: the binary needs no loader and no library.
func TestStatic(t *testing.T) {
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
