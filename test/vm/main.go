// Command vm runs the kernel tests of the repository on Debian's kernels, which have all options
// that the tests need, each in its own virtual machine.
//
//	go run ./vm [-kernel 6.1,5.10] [-run REGEXP] [-pkg ./nft,./test/e2e] [-j 1] [-limit 30m] [-update] [-v]
//	go run ./vm -lacks FILE [-kernel 6.1] …
//
// Packages are relative to the root of the repository, the parent of the current directory. A guest is
// one of Debian's kernels with its modules, busybox, the programs of [hostFiles] and the test binaries
// of this tree, all in one initramfs. It needs no privilege, and qemu emulates the processor where KVM
// does not work. Kernels are fetched once into the user's cache directory, by apt, which verifies
// their signatures.
//
// Which tests a guest leaves out they say themselves, by package kerneltest; those named by -run all run. FILE
// has the tests that were skipped here since this kernel lacks a feature, as make test writes it: a package and
// a test a line. Of these, a guest leaves out the long ones for which one guest of all tests is enough.
//
// The output is that of go test, with the kernel after each package. A test that fails and a guest that
// crashes, prints nothing for too long or does not end are failures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// needed are the programs, and the Debian packages that have them.
var needed = [][2]string{
	{"qemu-system-x86_64", "qemu-system-x86"}, {"busybox", "busybox-static"}, {"apt-get", "apt"},
	{"dpkg-deb", "dpkg"}, {"xz", "xz-utils"}, {"depmod", "kmod"},
}

// allTests is the default of -run.
const allTests = "^TestKernel"

// allPackages are those of both modules.
const allPackages = "./..."

// options are what the command line says.
type options struct {
	run     string // tests
	pkgs    string // patterns for go list, separated by commas
	lacks   string // file of the tests to run, instead of run and pkgs
	kernels string // names in [kernels], separated by commas
	guests  int    // running at once
	bench   string // flags of the bench, which runs instead of tests; empty: tests
	systemd bool   // test the units of dist instead
	web     string // directory to write the guest of test/clients to; empty: tests
	tour    bool   // run commands of the documents in an initramfs instead
	require bool   // fail where -systemd would skip
	update  bool   // fetch kernels anew
	fetch   bool   // and do nothing else
	all     bool   // print all output of the tests
	limit   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.run, "run", allTests, "the tests to run, as for go test")
	flag.StringVar(&o.pkgs, "pkg", allPackages, "packages, from the root of the repository, separated by commas")
	flag.StringVar(&o.lacks, "lacks", "", "run the tests in this file, which make test skipped for what this kernel lacks")
	flag.StringVar(&o.kernels, "kernel", "", "kernels, separated by commas (default all)")
	flag.IntVar(&o.guests, "j", runtime.NumCPU(), "guests that run at once, each with one processor")
	flag.StringVar(&o.bench, "bench", "", "run the bench with these flags instead of tests")
	flag.BoolVar(&o.systemd, "systemd", false, "run the units of dist on a Debian with systemd instead of tests")
	flag.BoolVar(&o.tour, "tour", false, "boot examples/initramfs and run commands of docs/tutorial.md in it instead of tests")
	flag.StringVar(&o.web, "web", "", "write the guest of the trials of clients to this directory, and do nothing else")
	flag.BoolVar(&o.require, "require", false, "with -systemd: fail where a program or root is missing")
	flag.BoolVar(&o.update, "update", false, "fetch the newest of each kernel, also where one is in the cache")
	flag.BoolVar(&o.fetch, "fetch", false, "fetch the kernels, and do nothing else")
	flag.BoolVar(&o.all, "v", false, "print all that the tests say")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "how long the tests of one guest may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL vm:", err)
		os.Exit(1)
	}
}

// run runs everything and prints failures. The error names the kernels that failed.
func run(ctx context.Context, o options) error {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin") // depmod, for ordinary users
	if err := os.Chdir(".."); err != nil {                  // the root of the repository
		return err
	}
	if o.systemd {
		return runSystemd(ctx, o)
	}
	if err := checkPrograms(); err != nil {
		return err
	}
	if o.web != "" {
		return writeWeb(ctx, o)
	}
	if o.tour {
		return runTour(ctx, o)
	}
	if o.lacks != "" {
		text, err := os.ReadFile(o.lacks)
		if err != nil {
			return fmt.Errorf("%w: `make test` writes it", err)
		}
		if o.pkgs, o.run = lacking(string(text)); o.pkgs == "" {
			fmt.Println("vm: this kernel lacks nothing that a test needs: there is nothing to run in a guest")
			return nil
		}
	}
	chosen, err := choose(o.kernels)
	if err != nil {
		return err
	}
	if o.fetch {
		for _, k := range chosen {
			if _, err := k.get(ctx, cacheDir(), o.update); err != nil {
				return err
			}
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "cnibox-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var suites []suite
	var more map[string]string
	if o.bench != "" {
		suites, more, err = bench(ctx, dir)
	} else {
		suites, err = build(ctx, dir, strings.Split(o.pkgs, ","))
	}
	if err != nil {
		return err
	}
	base, err := system(suites)
	if err != nil {
		return err
	}
	for name, from := range more {
		base.copy(name, from, 0o755)
	}
	m := machine{dir: dir, suites: suites, printer: &printer{out: os.Stdout}, limit: o.limit}
	return m.runAll(ctx, chosen, base, o)
}

// checkPrograms returns an error if programs are missing here, with the packages that have them.
func checkPrograms() error {
	var missing, pkgs []string
	for _, n := range needed {
		if _, err := exec.LookPath(n[0]); err != nil {
			missing, pkgs = append(missing, n[0]), append(pkgs, n[1])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("no %s here: apt-get install %s", strings.Join(missing, ", "), strings.Join(pkgs, " "))
}

// choose returns kernels by name; "": all.
func choose(names string) (list []kernel, err error) {
	if names == "" {
		return kernels, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(kernels, func(k kernel) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no kernel %q: there are %v", name, kernels)
		}
		list = append(list, kernels[i])
	}
	return list, nil
}

// cacheDir returns the directory of the kernels.
func cacheDir() string {
	cache, err := os.UserCacheDir()
	if err != nil { // neither XDG_CACHE_HOME nor HOME is set
		cache = os.TempDir()
	}
	return filepath.Join(cache, "cnibox", "vm")
}

// lacking returns the packages of a file for -lacks, and what selects its tests, as for -pkg and -run.
// Packages that have tests of one name run each other's as well.
func lacking(text string) (pkgs, run string) {
	var dirs, tests []string
	for line := range strings.Lines(text) {
		pkg, test, _ := strings.Cut(strings.TrimSpace(line), " ")
		dirs = append(dirs, "."+strings.TrimPrefix(pkg, "github.com/cnibox/cnibox"))
		names := strings.Split(test, "/")
		for i, name := range names {
			names[i] = "^" + regexp.QuoteMeta(name) + "$"
		}
		tests = append(tests, strings.Join(names, "/"))
	}
	slices.Sort(dirs)
	slices.Sort(tests)
	return strings.Join(slices.Compact(dirs), ","), strings.Join(slices.Compact(tests), "|")
}

// runAll boots the kernels, some concurrently, and prints a summary.
func (m machine) runAll(ctx context.Context, chosen []kernel, base image, o options) error {
	cache := cacheDir()
	errs, reports := make([]error, len(chosen)), make([]*report, len(chosen))
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, o.guests))
	for i, k := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			reports[i] = newReport(k.name, m.printer)
			reports[i].verbose, reports[i].bench = o.all, o.bench != ""
			errs[i] = m.runOne(ctx, k, base, cache, o, reports[i])
		})
	}
	wg.Wait()
	m.printer.print(missedEverywhere(reports))
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("Linux %s: %w", chosen[i].name, err)
		}
	}
	return errors.Join(errs...)
}

// runOne runs all tests on one kernel.
func (m machine) runOne(ctx context.Context, k kernel, base image, cache string, o options, r *report) error {
	tree, err := k.get(ctx, cache, o.update)
	if err != nil {
		return err
	}
	disk := base.clone()
	flags := []string{"-test.v", "-test.run=" + o.run, "-test.timeout=" + o.limit.String(), "-test.parallel=4"}
	lane := kerneltest.LanePart
	if o.lacks != "" {
		lane = kerneltest.LaneLacks
	}
	if o.run == allTests {
		lane = k.lane()
	}
	if o.bench != "" {
		flags = benchFlags(o.bench)
	}
	suites := m.suites
	if k.again && o.pkgs == allPackages {
		suites = slices.DeleteFunc(slices.Clone(suites), func(s suite) bool { return strings.HasPrefix(s.path, "github.com/cnibox/cnibox/test/") })
	}
	disk.order(suites)
	disk.text("/etc/lane", lane+"\n", 0o644)
	disk.text("/etc/flags", strings.Join(flags, "\n")+"\n", 0o644)
	if err := tree.addModules(disk, k.preload); err != nil {
		return err
	}
	initrd := filepath.Join(m.dir, k.name+".cpio")
	if err := disk.write(initrd); err != nil {
		return err
	}
	defer os.Remove(initrd)
	m.accel, m.cmdline = accelerator(ctx, tree.vmlinuz)
	return m.boot(ctx, tree.vmlinuz, initrd, r)
}
