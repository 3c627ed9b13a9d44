package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stateParent has the directories that are emptied.
const stateParent = "/var/lib"

// state are those where CNI plugins and runtimes keep leases and results, and where
// podman and buildah remember what they have seen of images, for which they have no
// setting.
var state = []string{"cni", "containers"}

// empty puts an empty file system over a directory.
// The directory must be there. It ends with the mount namespace.
func empty(dir string) error {
	if err := unix.Mount("cnibox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}

// emptyState puts an empty file system over each directory of [state]. On a machine that
// lacks one, none must be made: there the directory above is replaced by one that
// has the old entries and the new ones.
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
		if err := empty(dir); err != nil {
			return err
		}
	}
	return nil
}

// replaceParent puts a file system over [stateParent] in which directories can be made.
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
	if err := empty(stateParent); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() { // no process works in those
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
