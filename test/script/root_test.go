package script

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// root gives the rest of the script its own root directory, at the first call, and mounts it
// read-only or not.
func root(ts *testscript.TestScript, h *hostAndContainer, args []string) error {
	if h.host == nil || len(args) != 1 {
		return mistake("usage, not in a plain script: root rw|ro|sealed")
	}
	if !h.ownRoot {
		if err := newRoot(ts.Getenv("NETNS")); err != nil {
			return mistake(err.Error())
		}
		h.ownRoot = true
	}
	var rootFlags, runFlags uintptr
	switch args[0] {
	case "rw":
	case "ro":
		rootFlags = unix.MS_RDONLY
	case "sealed":
		rootFlags, runFlags = unix.MS_RDONLY, unix.MS_RDONLY
	default:
		return mistake("unknown kind of root " + args[0])
	}
	if err := errors.Join(
		os.NewSyscallError("mount /", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|rootFlags, "")),
		os.NewSyscallError("mount /run", unix.Mount("", "/run", "", unix.MS_REMOUNT|unix.MS_BIND|runFlags, "")),
	); err != nil {
		return mistake(err.Error())
	}
	return nil
}

// newRoot moves this thread, which is the script's, into a new root directory: a tmpfs with its
// directories except /var, which is missing, and /run, which is another tmpfs.
//
// It is made on /run, which is not one of those directories: a path that leads into the new root
// from inside would be deleted together with the script's files, and all that is mounted there.
func newRoot(container string) error {
	const top = "/run"
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, "mode=0755"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := "/"+e.Name(), filepath.Join(top, e.Name())
		switch {
		case e.Name() == "var" || e.Name() == "run":
		case e.IsDir():
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("mount %s: %w", from, err)
			}
		case e.Type() == os.ModeSymlink:
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return err
			}
		}
	}
	run := filepath.Join(top, "run")
	if err := os.Mkdir(run, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	// A file that is a mount point in this mount namespace cannot be removed, and the end of the
	// test only unmounts the copy in the new root.
	if err := netns.Unbind(container); err != nil {
		return err
	}
	if err := unix.Chroot(top); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	return unix.Chdir("/")
}
