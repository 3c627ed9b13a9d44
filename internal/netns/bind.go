package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// Bind mounts the namespace on an existing file, as ip-netns(8) does: the namespace lives as long
// as the mount, and the file's path leads to it. Every process sees it only on a file system that
// all mount namespaces share, see [ShareMounts].
func (ns *NS) Bind(path string) error {
	return fault.Change("mount network namespace "+path, func() error {
		source := fmt.Sprintf("/proc/thread-self/fd/%d", ns.fd)
		if ns.IsHost() {
			source = Thread
		}
		return os.NewSyscallError("mount", unix.Mount(source, path, "", unix.MS_BIND, ""))
	})
}

// Unbind is the reverse of Bind; the file stays. It is not an error if nothing is mounted there, or
// if the file does not exist.
func Unbind(path string) error {
	for {
		// A namespace that was bound twice is mounted twice.
		err := fault.Change("unmount network namespace "+path, func() error { return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		}
	}
}

// ShareMounts makes mounts in a directory appear in, and disappear from, all mount namespaces,
// including those of services.
func ShareMounts(dir string) error {
	share := func() error { return unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "") }
	return fault.Change("share the mounts in "+dir, func() error {
		err := share()
		if errors.Is(err, unix.EINVAL) { // it is not a mount point yet
			if err = unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
				err = share()
			}
		}
		return os.NewSyscallError("mount", err)
	})
}
