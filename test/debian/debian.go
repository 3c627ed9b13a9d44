// Package debian makes root file systems of Debian for tests, with debootstrap, as root. They
// are stored as tar files beside Go's cache; delete a file to rebuild it.
package debian

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// A System is what debootstrap's variant minbase installs, with additional packages.
type System struct {
	Name     string
	Suite    string // empty: bookworm, which is Debian 12
	Packages []string
	Later    []string // packages that apt installs afterwards, without recommended ones: debootstrap cannot configure them
	Without  []string // excluded from the tar file, as by tar's --exclude
}

// Missing returns what this machine lacks; "": nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "a root file system and namespaces need root: try sudo"
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "no debootstrap here: apt-get install debootstrap"
	}
	return ""
}

// Unused are files that trials in a small system do not need.
var Unused = []string{
	"./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*", "./usr/share/doc/*", "./usr/share/man/*",
	"./usr/share/locale/*", "./usr/share/i18n/*", "./proc/*", "./sys/*", "./dev/*",
}

// Podman5 has podman 5 and netavark.
var Podman5 = System{
	Name: "podman", Suite: "trixie", Without: Unused,
	Packages: []string{"podman", "netavark", "crun", "conmon", "catatonit", "nftables", "iproute2", "passt", "uidmap", "fuse-overlayfs", "busybox-static"},
}

// Skip prints what is missing for a trial, or with require returns it as an error.
func Skip(trial, missing string, require bool) error {
	if require {
		return errors.New(missing)
	}
	fmt.Printf("SKIPPED: %s: %s\n", trial, missing)
	return nil
}

// Write writes files, by their names relative to dir.
func Write(dir string, files map[string]string) error {
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// Cache returns the directory of Go's cache, beside which systems are stored.
func Cache() (string, error) {
	dir, err := exec.Command("go", "env", "GOCACHE").Output()
	return strings.TrimSpace(string(dir)), err
}

// Fetch builds the system if Go's cache has none. It needs the network.
func (s System) Fetch(cache string) error {
	archive := filepath.Join(cache, s.archive())
	if _, err := os.Stat(archive); err == nil {
		return nil
	}
	fmt.Printf("%s: debootstrap of %s, into %s\n", s.Name, s.suite(), archive)
	return s.bootstrap(archive)
}

// Unpack unpacks the system, or only the files of these names, into a directory. If Go's cache has none it is
// built first.
func (s System) Unpack(cache, dir string, names ...string) error {
	if err := s.Fetch(cache); err != nil {
		return err
	}
	archive := filepath.Join(cache, s.archive())
	if out, err := exec.Command("tar", append([]string{"-C", dir, "-xf", archive}, names...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w\n%s", archive, err, tail(out))
	}
	return os.Chmod(dir, 0o755) // ordinary users need the root directory, too
}

// archive names the tar file by a checksum of the packages and exclusions.
func (s System) archive() string {
	sum := crc32.ChecksumIEEE(fmt.Append(nil, slices.Concat(s.Packages, s.Later), s.Without))
	return fmt.Sprintf("cnibox-%s-%s-%08x.tar", s.suite(), s.Name, sum)
}

func (s System) suite() string { return cmp.Or(s.Suite, "bookworm") }

// installLater installs packages in a system.
const installLater = `root=$1
shift
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get -qq update
chroot "$root" apt-get -qq -y --no-install-recommends install "$@"
`

func (s System) bootstrap(archive string) error {
	dir, err := os.MkdirTemp("", "cnibox-debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("debootstrap", "--variant=minbase", "--include="+strings.Join(s.Packages, ","), s.suite(), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL} // its mounts end with the namespace
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap: %w\n%s", err, tail(out))
	}
	if len(s.Later) > 0 {
		cmd := exec.Command("sh", append([]string{"-ec", installLater, "sh", dir}, s.Later...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get install: %w\n%s", err, tail(out))
		}
	}
	part := fmt.Sprintf("%s.%d", archive, os.Getpid())
	args := []string{"-C", dir, "-cf", part}
	for _, pattern := range s.Without {
		args = append(args, "--exclude="+pattern)
	}
	if out, err := exec.Command("tar", append(args, ".")...).CombinedOutput(); err != nil {
		return fmt.Errorf("pack %s: %w\n%s", part, err, tail(out))
	}
	return os.Rename(part, archive)
}

// tail returns the last lines of a log.
func tail(log []byte) []byte {
	const most = 2000 // bytes
	return bytes.TrimSpace(log[max(0, len(log)-most):])
}
