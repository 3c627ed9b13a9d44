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

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// A kernel is one of Debian's.
type kernel struct {
	name    string   // version, as in the flag -kernel
	suite   string   // of the security archive, where the newest ones are
	pkg     string   // meta package of the newest build
	preload []string // modules in addition to [preload]
	again   bool     // skips tests for which one guest is enough, and those of the module test
}

// kernels is the matrix. 5.10 is the oldest that Debian still maintains. The first has
// br_netfilter, so bridged packets pass iptables' rules, as on nodes of Kubernetes.
var kernels = []kernel{
	{"6.1", "bookworm-security", "linux-image-cloud-amd64", []string{"br_netfilter"}, false},
	{"5.10", "bullseye-security", "linux-image-cloud-amd64", nil, true},
	{"6.12", "bookworm-security", "linux-image-6.12-cloud-amd64", nil, true},
}

// The archive of kernels, and the keyring of its signatures.
const (
	archive = "http://deb.debian.org/debian-security"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

func (k kernel) String() string { return k.name }

// lane is CNIBOX_LANE in the guest.
func (k kernel) lane() string {
	if k.again {
		return kerneltest.LaneGuests
	}
	return kerneltest.LaneGuest
}

// get returns the unpacked kernel in the cache directory, and fetches it if it is missing or update
// is set.
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
	err = retry(ctx, fetchPauses, func() error {
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

// fetchPauses are the pauses between attempts to fetch a kernel.
var fetchPauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute}

// retry repeats do with pauses while it fails, as a download may. The error is that of the last
// attempt.
func retry(ctx context.Context, pauses []time.Duration, do func() error) error {
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

// fetch makes apt download and verify the package, with its own lists in tmp, and unpacks it to
// root.
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

// newAPT makes the directories and files of a private apt and returns its options. It neither sees
// nor changes the machine's lists and packages.
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
		// The index of a suite without updates expires.
		"-o", "Acquire::Check-Valid-Until=false",
	}, err
}

// dependency finds the kernel's package in the output of apt-cache for a meta package.
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

// output runs a program in a directory and returns its stdout; the error has its stderr.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		return "", fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(e.Stderr)))
	}
	return string(out), err
}
