package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// state is where CNI plugins and runtimes keep leases and results.
const state = "/var/lib/cni"

// empty puts an empty file system over a folder.
// The folder must be there. It ends with the mount namespace.
func empty(dir string) error {
	if err := unix.Mount("cnibox", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}

// emptyState puts an empty file system over /var/lib/cni. On a machine that has
// no such folder, none must be made: there the folder above is replaced by one
// that has the old entries and the new one.
func emptyState() error {
	err := empty(state)
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(state)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	old, err := os.OpenFile(parent, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := empty(parent); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() { // nobody works in those
			continue
		}
		from := fmt.Sprintf("/proc/self/fd/%d/%s", old.Fd(), e.Name())
		to := filepath.Join(parent, e.Name())
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s: %w", to, err)
		}
	}
	return os.Mkdir(state, 0o755)
}
