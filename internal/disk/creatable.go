package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Creatable returns why a directory, or files in it, cannot be created, as far as that can be seen
// without trying: a file system that is read-only, full or the kernel's own, a directory that is
// immutable or for which the permission is missing, or something else in place of a directory. It
// looks at the nearest directory that exists.
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

// writable asks the kernel whether files can be created in a directory, with the effective
// IDs. x/sys takes EPERM, which means that the directory is immutable, for a missing system
// call and guesses by the mode: so a second call asks for it.
func writable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil && unix.Access(path, unix.W_OK) == unix.EPERM {
		err = unix.EPERM
	}
	return err
}

// room returns an error for a file system of which the kernel makes all files, and for one without
// a free block or inode. Some do not count these, as btrfs its inodes, and are not full.
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
