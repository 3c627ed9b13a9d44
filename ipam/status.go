package ipam

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Exhausted returns the first range set that has no address left; -1: none. A set is
// exhausted when ADD would fail in it. Leases without an owner count as free, since ADD
// takes them over.
func Exhausted(s *Store, sets []RangeSet) (int, error) {
	if err := s.load(); err != nil {
		return -1, err
	}
	for i, set := range sets {
		if s.x.mem == nil && s.someFree(i, set) {
			continue
		}
		known, err := s.entries()
		if err != nil {
			return -1, err
		}
		used := uint64(0)
		for _, a := range known {
			if set.Contains(a) && !set.gateway(a) {
				used++
			}
		}
		if used >= set.usable() {
			return i, nil
		}
	}
	return -1, nil
}

// someFree reports whether one of the addresses that ADD tries first has no lease, which
// spares counting the leases.
func (s *Store) someFree(i int, set RangeSet) bool {
	a := s.first(i, set)
	for n := uint64(0); n < min(set.size(), dense); n, a = n+1, set.after(a) {
		if !set.gateway(a) && errors.Is(unix.Fstatat(s.leases.fd, a.String(), new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW), os.ErrNotExist) {
			return true
		}
	}
	return false
}

// Usable reports why no lease of the network can be made below dir, as far as that
// shows without trying: a file system that is read-only or full, a directory that is
// immutable or for which the permission is missing, or something else where a directory
// is due.
// It looks at the nearest directory that is there.
func Usable(dir, network string) error {
	path := filepath.Join(dir, network)
	for {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if errors.Is(err, os.ErrNotExist) && path != "/" {
			if info, lerr := os.Lstat(path); lerr == nil && info.Mode()&os.ModeSymlink != 0 {
				return fmt.Errorf("%s is a symbolic link, and what it leads to is missing", path)
			}
			path = filepath.Dir(path) // it will be made there
			continue
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ENOTDIR
		}
		if err == nil {
			err = writable(path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return full(path)
	}
}

// writable asks the kernel whether entries can be made in a directory. It is asked with
// the effective IDs; there x/sys takes EPERM, which says that the directory is immutable,
// for a missing system call, and guesses by the mode: so it is asked once more.
func writable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil && unix.Access(path, unix.W_OK) == unix.EPERM {
		err = unix.EPERM
	}
	return err
}

// full reports a file system without a free block or inode. Some count none at
// all, and these are not full.
// btrfs counts no inodes.
func full(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0 {
		return fmt.Errorf("%s: %w", path, unix.ENOSPC)
	}
	return nil
}
