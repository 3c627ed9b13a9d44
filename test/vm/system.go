package main

import (
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// hostFiles are patterns of files of this machine that a guest has under the same path, if they
// exist here: programs, the files that they read, and libraries that they load at run time. A test
// that needs another one adds it here.
var hostFiles = []string{
	"/usr/bin/busybox", "/bin/busybox",
	// busybox's stat does not know nsfs, its hostname has no -I, its setpriv no --bounding-set, and its sh and nsenter
	// call its own ip
	"/usr/bin/stat", "/bin/hostname", "/usr/bin/setpriv", "/bin/sh", "/usr/bin/nsenter",
	"/usr/bin/flock", "/usr/bin/strace",
	"/usr/sbin/nft",
	"/usr/sbin/iptables*", "/usr/sbin/ip6tables*", "/usr/sbin/ebtables*", "/usr/sbin/xtables-nft-multi",
	"/usr/lib/x86_64-linux-gnu/xtables/*.so",
	"/usr/sbin/conntrack", "/usr/bin/dbus-daemon", "/usr/share/dbus-1/*.conf",
	"/bin/ip", "/sbin/ip", "/sbin/tc", "/sbin/bridge", "/etc/iproute2/*", "/usr/lib/x86_64-linux-gnu/tc/*", "/usr/lib/tc/*",
	"/etc/protocols", "/etc/services",
}

// newestDir is the directory of the newest reference plugins in a guest of `make test-twin
// KERNEL=`.
const newestDir = "/usr/lib/cni-newest"

// libraryDirs are the directories of shared libraries, in the order of Debian's loader.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"}

//go:embed guest.sh
var guestScript string

// A suite is a package with kernel tests.
type suite struct {
	path   string // import path
	dir    string // relative to the root of the repository
	binary string // test binary on this machine
}

// kernelTest matches a kernel test in a source file.
var kernelTest = regexp.MustCompile(`(?m)^func TestKernel`)

// modules are the directories of the repository's modules: the product, and the tests that drive it
// from outside.
var modules = []string{".", "test"}

// build builds the test binaries of packages with kernel tests in dir. Patterns are relative to the
// root of the repository; "./..." means both modules.
func build(ctx context.Context, dir string, patterns []string) (suites []suite, err error) {
	own := map[string][]string{}
	for _, p := range patterns {
		switch inner, ok := strings.CutPrefix(p, "./test/"); {
		case p == allPackages:
			own["."], own["test"] = append(own["."], p), append(own["test"], p)
		case ok:
			own["test"] = append(own["test"], "./"+inner)
		default:
			own["."] = append(own["."], p)
		}
	}
	for _, module := range modules {
		if len(own[module]) == 0 {
			continue
		}
		list, err := buildModule(ctx, module, filepath.Join(dir, "tests", module), own[module])
		if err != nil {
			return nil, err
		}
		suites = append(suites, list...)
	}
	if len(suites) == 0 {
		return nil, fmt.Errorf("no kernel tests in %s", strings.Join(patterns, ", "))
	}
	return suites, nil
}

// buildModule is build for packages of one module.
func buildModule(ctx context.Context, module, dir string, patterns []string) (suites []suite, err error) {
	list, err := output(ctx, module, "go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	args := []string{"test", "-c", "-ldflags", "-s -w", "-o", dir + "/"}
	for dec := json.NewDecoder(strings.NewReader(list)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if !hasKernelTest(p.Dir, append(p.TestGoFiles, p.XTestGoFiles...)) {
			continue
		}
		rel, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		args = append(args, p.ImportPath)
		suites = append(suites, suite{p.ImportPath, rel, filepath.Join(dir, filepath.Base(p.ImportPath)+".test")})
	}
	if len(suites) == 0 {
		return nil, nil
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stderr = os.Stderr
	return suites, errors.Join(os.MkdirAll(dir, 0o755), cmd.Run())
}

// hasKernelTest reports whether one of the files has a kernel test.
func hasKernelTest(dir string, files []string) bool {
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && kernelTest.Match(text) {
			return true
		}
	}
	return false
}

// system makes the image that every guest has: programs, tests with their files, and the script
// that runs them.
func system(suites []suite) (image, error) {
	im := newImage()
	for _, pattern := range hostFiles {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := im.host(file); err != nil {
				return nil, fmt.Errorf("%s for the guest: %w", file, err)
			}
		}
	}
	if newest := os.Getenv("CNIBOX_TWIN_NEWEST"); newest != "" {
		files, err := os.ReadDir(newest)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			im.copy(filepath.Join(newestDir, f.Name()), filepath.Join(newest, f.Name()), 0o755)
		}
	}
	im.text("/init", guestScript, 0o755)
	im.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644)
	im.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644)
	im.text("/etc/resolv.conf", "nameserver 192.0.2.53\n", 0o644)
	im.text("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", 0o644)
	for _, s := range suites {
		im.copy("/tests/"+s.path+".test", s.binary, 0o755)
		im.dir(filepath.Join("/src", s.dir))
	}
	return im, im.testdata()
}

// order writes the list of suites that the guest runs.
func (im image) order(suites []suite) {
	var lines strings.Builder
	for _, s := range suites {
		fmt.Fprintln(&lines, s.path, s.dir)
	}
	im.text("/etc/suites", lines.String(), 0o644)
}

// testdata adds every directory testdata, since a package may use another's, the documentation, whose
// pages and schemas scripts read, and the examples.
func (im image) testdata() error {
	return filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !d.Type().IsRegular():
		case strings.Contains("/"+path, "/testdata/"), strings.HasPrefix(path, "docs/"), strings.HasPrefix(path, "examples/"):
			im.copy("/src/"+path, path, 0o644)
		}
		return nil
	})
}

// host adds a file of this machine under the same path, with the target of a link, and the
// libraries of a program.
func (im image) host(file string) error {
	st, err := os.Lstat(file)
	if err != nil || st.IsDir() {
		return err
	}
	if st.Mode()&fs.ModeSymlink == 0 {
		im.copy(file, file, uint32(st.Mode().Perm()))
		return im.libraries(file)
	}
	target, err := os.Readlink(file)
	if err != nil {
		return err
	}
	im.link(file, target)
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(file), target)
	}
	return im.host(target)
}

// libraries adds the loader and the shared libraries of an ELF file.
func (im image) libraries(file string) error {
	f, err := elf.Open(file)
	if e := (*elf.FormatError)(nil); errors.As(err, &e) || errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(p.Open())
			if err != nil {
				return err
			}
			if err := im.host(unix.ByteSliceToString(b)); err != nil {
				return err
			}
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := im.library(name); err != nil {
			return err
		}
	}
	return nil
}

// library adds a shared library from the first directory that has it.
func (im image) library(name string) error {
	for _, dir := range libraryDirs {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if im[filepath.Join("/usr", strings.TrimPrefix(file, "/usr"))].mode != 0 {
			return nil // with its dependencies
		}
		return im.host(file)
	}
	return fmt.Errorf("shared library %s: %w", name, os.ErrNotExist)
}
