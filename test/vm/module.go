package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// moduleDirs are the directories of modules that a guest has, with the modules that these depend
// on. The rest of a kernel package is drivers and file systems.
var moduleDirs = []string{"arch/x86/crypto", "crypto", "drivers/net", "drivers/uio", "drivers/virtio", "lib", "net"}

// inGuest are prefixes of the paths of modules in a guest, which also has their dependencies.
var inGuest = []string{
	"net/8021q", "net/bridge", "net/core", "net/ipv4", "net/ipv6", "net/key", "net/llc", "net/netfilter",
	"net/packet", "net/sched", "net/sctp", "net/unix", "net/xfrm", "drivers/net/bonding/", "drivers/net/dummy", "drivers/net/ifb",
	"drivers/net/ipvlan/", "drivers/net/macv", "drivers/net/nlmon", "drivers/net/tap", "drivers/net/tun",
	"drivers/net/veth", "drivers/net/virtio_net", "drivers/net/vrf", "drivers/net/vxlan",
	"drivers/uio/uio_pci_generic", "drivers/virtio/virtio_pci",
}

// preload are the modules that no system call loads, those that every test needs, since the kernel
// takes a while to find one by its alias, and those that tests probe for: busybox's modprobe takes
// a module that another modprobe is still loading as loaded, and then the kernel reports that it is
// missing. The others are loaded on demand.
var preload = []string{
	"veth", "bridge", "nf_tables", "nft_chain_nat", "nf_conntrack_netlink", "sctp",
	"virtio_pci", "virtio_net", "uio_pci_generic",
	"8021q", "dummy", "ifb", "ipvlan", "macvlan", "tun", "vrf", "act_mirred", "cls_u32", "sch_ingress", "sch_tbf",
}

// A tree is an unpacked kernel.
type tree struct {
	vmlinuz string
	modules string // directory of modules.dep
	release string // as uname -r
}

// keptFile names the module directories that a tree has kept.
const keptFile = "folders"

// kept is its content for the directories that guests need now.
func kept() string { return strings.Join(moduleDirs, "\n") + "\n" }

// openTree opens an unpacked kernel. It fails if unpacking was not finished, or if guests now need
// more directories.
func openTree(dir string) (t tree, err error) {
	if b, err := os.ReadFile(filepath.Join(dir, keptFile)); err != nil || string(b) != kept() {
		return t, fmt.Errorf("modules of %s: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	deps, err := filepath.Glob(filepath.Join(dir, "lib/modules/*/modules.dep"))
	if err != nil || len(deps) != 1 {
		return t, fmt.Errorf("%d kernels in %s: %w", len(deps), dir, err)
	}
	t.modules = filepath.Dir(deps[0])
	t.release = filepath.Base(t.modules)
	t.vmlinuz = filepath.Join(dir, "boot", "vmlinuz-"+t.release)
	_, err = os.Stat(t.vmlinuz)
	return t, err
}

// prepare deletes what no guest needs from an unpacked package, decompresses its modules and runs
// depmod, as its installation would.
func prepare(ctx context.Context, root string) error {
	found, err := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%d kernels in the package: %w", len(found), err)
	}
	var packed []string
	top := filepath.Join(found[0], "kernel")
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel := strings.TrimPrefix(path, top+"/")
		if !slices.ContainsFunc(moduleDirs, func(dir string) bool { return strings.HasPrefix(rel, dir+"/") }) {
			return os.Remove(path)
		}
		if strings.HasSuffix(path, ".xz") {
			packed = append(packed, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(packed) > 0 { // in Debian 6.12 and later
		if _, err := output(ctx, root, "xz", append([]string{"-d"}, packed...)...); err != nil {
			return err
		}
	}
	if _, err = output(ctx, root, "depmod", "-b", root, filepath.Base(found[0])); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, keptFile), []byte(kept()), 0o644)
}

// addModules adds modules to an image: those of [inGuest] and their dependencies, and the list of
// modules to load at the start, without built-in ones.
func (t tree) addModules(disk image, more []string) error {
	deps, err := os.ReadFile(filepath.Join(t.modules, "modules.dep"))
	if err != nil {
		return err
	}
	lines, names := closure(string(deps), func(path string) bool {
		return slices.ContainsFunc(inGuest, func(p string) bool { return strings.HasPrefix(path, "kernel/"+p) })
	})
	aliases, err := os.ReadFile(filepath.Join(t.modules, "modules.alias"))
	builtin, err2 := os.ReadFile(filepath.Join(t.modules, "modules.builtin"))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	to := "/usr/lib/modules/" + t.release + "/"
	for line := range strings.Lines(lines) {
		path, _, _ := strings.Cut(line, ":")
		disk.copy(to+path, filepath.Join(t.modules, path), 0o644)
	}
	disk.text(to+"modules.dep", lines, 0o644)
	disk.text(to+"modules.builtin", string(builtin), 0o644)
	disk.text(to+"modules.alias", ofModules(string(aliases), names), 0o644)
	var load []string
	for _, name := range slices.Concat(preload, more) {
		switch {
		case names[name]:
			load = append(load, name)
		case !strings.Contains(string(builtin), "/"+name+".ko"):
			return fmt.Errorf("%s has no module %s", t.release, name)
		}
	}
	disk.text("/etc/modules", strings.Join(load, "\n")+"\n", 0o644)
	return nil
}

// closure returns the lines of a modules.dep for the wanted files and all their dependencies, and
// the names of these modules.
func closure(deps string, want func(path string) bool) (lines string, names map[string]bool) {
	all := map[string]string{} // line of each path
	var todo []string
	for line := range strings.Lines(deps) {
		path, _, _ := strings.Cut(line, ":")
		all[path] = line
		if want(path) {
			todo = append(todo, path)
		}
	}
	names = map[string]bool{}
	var out strings.Builder
	for ; len(todo) > 0; todo = todo[1:] {
		name := moduleName(todo[0])
		if names[name] {
			continue
		}
		names[name] = true
		line := all[todo[0]]
		out.WriteString(line)
		_, needs, _ := strings.Cut(line, ":")
		todo = append(todo, strings.Fields(needs)...)
	}
	return out.String(), names
}

// moduleName is the kernel's name of a module file.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// ofModules returns the lines of a modules.alias for these modules: modprobe reads the whole file
// each time.
func ofModules(aliases string, names map[string]bool) string {
	var out strings.Builder
	for line := range strings.Lines(aliases) {
		if words := strings.Fields(line); len(words) == 3 && names[words[2]] {
			out.WriteString(line)
		}
	}
	return out.String()
}
