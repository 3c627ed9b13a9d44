package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Creatable returns the reason why a directory, or files in it, cannot be created, without creating
// anything: the file system is read-only, full or one of the kernel's (such as /proc), the directory
// is immutable, the permission is missing, or a component of the path is not a directory. It checks
// the nearest existing directory.
func Creatable(path string) error {
	for {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, os.ErrNotExist) && path != "/" {
			if info, lerr := os.Lstat(path); lerr == nil && info.Mode()&os.ModeSymlink != 0 {
				return fmt.Errorf("%s is a symbolic link, and what it leads to is missing", path)
			}
			path = filepath.Dir(path) // it will be created there
			continue
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ENOTDIR
		}
		if err == nil {
			err = writable(path)
		}
		if err == nil {
			err = room(path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
}

// writable checks with the effective IDs whether files can be created in a directory. x/sys interprets
// EPERM, the error for an immutable directory, as a missing system call, and then decides by the mode:
// so access(2) checks for EPERM.
func writable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil && unix.Access(path, unix.W_OK) == unix.EPERM {
		err = unix.EPERM
	}
	return err
}

// room returns an error for a file system in which only the kernel creates files, and for one without
// a free block or inode. A total of 0 means that they are not counted, as the inodes of btrfs.
func room(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	switch uint32(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return errors.New("no files can be created in this file system")
	}
	if st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0 {
		return unix.ENOSPC
	}
	return nil
}
