package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A kernel is one of Debian's. Its String is its name.
type kernel struct {
	name    string   // version, as people say it
	suite   string   // of the security archive, where the newest ones are
	pkg     string   // meta package that leads to the newest build
	preload []string // modules besides those of [preload]
	fewer   bool     // without the tests of [ownMatters] and those of the module test
}

// kernels is the matrix. 5.10 is the oldest that Debian still keeps, and the first
// has bridged packets pass the rules of IP, as on nodes of Kubernetes.
var kernels = []kernel{
	{"6.1", "bookworm-security", "linux-image-cloud-amd64", []string{"br_netfilter"}, false},
	{"5.10", "bullseye-security", "linux-image-cloud-amd64", nil, true},
	{"6.12", "bookworm-security", "linux-image-6.12-cloud-amd64", nil, true},
}

// outside are tests of processes, disks and bad input that call plugins some hundred times, and
// want nothing that kernels lack: without a guest they take a tenth of the time. So do the scripts of
// what cni-exec reads and prints, which make test runs with and without processes. The twin runs are
// in a guest by make test-twin, against the newest reference.
const outside = "^TestKernel(DHCP(Killed|Restart|Interrupted|Twenty|Memory|Activated)|Killed|Run|Disk|Bad(Names|Stdin|Members|IPAMType|PrevResult|NetNS)|OddFiles|OddPrevResult|Override|CVE2021|HelperSeen|UpInterrupted|(Reload|Boot)Killed|Reload(Signal|ReadsPortsOnce)|ManyUnknownKeys|PortmapAllPorts|CheckManyPorts|Hostile|Interrupt|GCMany|PluginUnwritable|NothingGrows|Once$|NoThreads|LeaseLooks|UserTasks|FewDescriptors)|^TestKernelTwin$|" +
	"^TestKernelScripts$/^inprocess$/^(cni-exec-(all|conf|hints|json|ls|ls-busy|metrics|names|path|rm|run-flags|run-name|show|version|who)|" +
	"args|dry-run|errors|lint-host|lint-warnings|log|second-add|status)$"

// ownMatters are tests that call plugins as often, and need a guest for the plugins that
// not every kernel can: what they leave behind when they are killed or a change fails, or DEL
// finds things missing; thousands of ports; and the scripts with delegates started. One kernel
// is enough for that. A processor that is emulated starts 20 programs a second.
const ownMatters = "^TestKernel(DelMatrix|EnoughDescriptors|NoHelper|Setns$|EveryKilled|Rollback|PortmapThousands$|DelUnreadable|Messages|ChainNamesLoad)|^TestKernelScripts$/^exec$"

// Where kernels come from, and whose signature they need.
const (
	archive = "http://deb.debian.org/debian-security"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

func (k kernel) String() string { return k.name }

// skip is a regular expression of the tests that are not for this kernel.
func (k kernel) skip() string {
	if k.fewer {
		return outside + "|" + ownMatters
	}
	return outside
}

// get returns the unpacked kernel of the cache directory, and fetches it if there is
// none or update is set.
func (k kernel) get(ctx context.Context, cache string, update bool) (tree, error) {
	dir := filepath.Join(cache, "linux-"+k.name)
	if t, err := openTree(dir); err == nil && !update {
		return t, nil
	}
	fmt.Printf("fetching Linux %s (%s of %s)\n", k.name, k.pkg, k.suite)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return tree{}, err
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return tree{}, err
	}
	defer os.RemoveAll(tmp)
	fresh := filepath.Join(tmp, "root")
	err = again(ctx, fetchPauses, func() error {
		return errors.Join(os.RemoveAll(fresh), k.fetch(ctx, tmp, fresh))
	})
	if err != nil {
		return tree{}, fmt.Errorf("fetch: %w", err)
	}
	if _, err := openTree(fresh); err != nil {
		return tree{}, fmt.Errorf("%s: %w", k.pkg, err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		if t, err := openTree(dir); err == nil && !update {
			return t, nil // another run was faster, and uses it
		}
		if err := errors.Join(os.RemoveAll(dir), os.Rename(fresh, dir)); err != nil {
			return tree{}, err
		}
	}
	return openTree(dir)
}

// fetchPauses are between the tries to fetch a kernel.
var fetchPauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute}

// again does something that may fail for a while, as what comes over the network, with
// pauses in between. The error is that of the last try.
func again(ctx context.Context, pauses []time.Duration, do func() error) error {
	err := do()
	for _, pause := range pauses {
		if err == nil || ctx.Err() != nil {
			break
		}
		fmt.Printf("%v; trying again in %s\n", err, pause)
		time.Sleep(pause)
		err = do()
	}
	return err
}

// fetch has apt find and check the package, with lists of its own in tmp, and
// unpacks it to root.
func (k kernel) fetch(ctx context.Context, tmp, root string) error {
	apt, err := newAPT(tmp, k.suite)
	if err != nil {
		return err
	}
	if _, err := output(ctx, tmp, "apt-get", append(apt, "update")...); err != nil {
		return err
	}
	meta, err := output(ctx, tmp, "apt-cache", append(apt, "show", "--no-all-versions", k.pkg)...)
	if err != nil {
		return err
	}
	pkg := dependency(meta)
	if pkg == "" {
		return fmt.Errorf("package %s depends on no kernel", k.pkg)
	}
	if _, err := output(ctx, tmp, "apt-get", append(apt, "download", pkg)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get downloaded %d files: %w", len(debs), err)
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], root); err != nil {
		return err
	}
	return prepare(ctx, root)
}

// newAPT makes the directories and files of a private apt and returns its options.
// The machine's lists and packages are neither seen nor touched.
func newAPT(dir, suite string) ([]string, error) {
	source := fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main\n", keyring, archive, suite)
	list, status := filepath.Join(dir, "sources.list"), filepath.Join(dir, "status")
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(dir, "archives", "partial"), 0o755),
		os.WriteFile(list, []byte(source), 0o644),
		os.WriteFile(status, nil, 0o644),
	)
	return []string{
		"-qq", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root",
		"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State=" + dir, "-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + dir,
		// A suite that is no longer updated keeps its signature, not its date.
		"-o", "Acquire::Check-Valid-Until=false",
	}, err
}

// dependency finds the package of the kernel in what apt-cache shows of a meta package.
func dependency(control string) string {
	for line := range strings.Lines(control) {
		rest, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for dep := range strings.SplitSeq(rest, ",") {
			if words := strings.Fields(dep); len(words) > 0 && strings.HasPrefix(words[0], "linux-image-") {
				return words[0]
			}
		}
	}
	return ""
}

// output runs a program in a directory and returns what it prints; the error has its complaints.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(e.Stderr)))
	}
	return string(out), err
}
