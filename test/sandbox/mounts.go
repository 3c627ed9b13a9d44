package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/lint"
)

// stateParent is the parent of the directories in [state].
const stateParent = "/var/lib"

// state are the directories in which CNI plugins and runtimes keep leases and results, and podman
// and buildah their cache of images, whose path cannot be set.
var state = []string{"cni", "containers"}

// mountEmpty mounts an empty file system over an existing directory. It ends with the mount
// namespace.
func mountEmpty(dir string) error {
	if err := unix.Mount("cnibox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}

// Hide mounts an empty file system over each directory in which the machine may have something of CNI: plugins,
// configurations, leases, caches and sockets; resolv.conf has a server that no machine has. The mounts of this thread
// must be private.
func Hide() error {
	if err := hideResolvers(); err != nil {
		return err
	}
	if err := mountEmpty("/run"); err != nil { // over the file of hideResolvers, too
		return err
	}
	for _, dir := range append(lint.PluginDirs[:], "/etc/cni") {
		if err := mountEmpty(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return emptyState()
}

// hideResolvers mounts another file over /etc/resolv.conf, if there is one. It may be a link to a file in /run, which
// is hidden: so it is the link that is mounted on, by its descriptor.
func hideResolvers() error {
	link, err := unix.Open("/etc/resolv.conf", unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open /etc/resolv.conf", err)
	}
	defer unix.Close(link)
	if err := mountEmpty("/run"); err != nil {
		return err
	}
	const file = "/run/resolv.conf"
	if err := os.WriteFile(file, []byte("nameserver 192.0.2.53\n"), 0o644); err != nil {
		return err
	}
	return os.NewSyscallError("mount /etc/resolv.conf", unix.Mount(file, fmt.Sprintf("/proc/self/fd/%d", link), "", unix.MS_BIND, ""))
}

// emptyState mounts an empty file system over each directory of [state]. If the machine lacks one,
// it must not be created there: then the parent is replaced by one with the old entries and the new
// ones.
func emptyState() error {
	for _, name := range state {
		if _, err := os.Stat(filepath.Join(stateParent, name)); errors.Is(err, os.ErrNotExist) {
			if err := replaceParent(); err != nil {
				return err
			}
			break
		}
	}
	for _, name := range state {
		dir := filepath.Join(stateParent, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := mountEmpty(dir); err != nil {
			return err
		}
	}
	return nil
}

// replaceParent mounts a file system over [stateParent] in which directories can be made.
func replaceParent() error {
	entries, err := os.ReadDir(stateParent)
	if err != nil {
		return err
	}
	old, err := os.OpenFile(stateParent, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := mountEmpty(stateParent); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() { // no process uses files there
			continue
		}
		from := fmt.Sprintf("/proc/self/fd/%d/%s", old.Fd(), e.Name())
		to := filepath.Join(stateParent, e.Name())
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s: %w", to, err)
		}
	}
	return nil
}
