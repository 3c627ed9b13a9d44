package ipam

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Exhausted returns the index of the first range set in which ADD would find no free address;
// -1: there is none. Leases without an owner, and those of owners that are gone, count as free,
// since ADD reclaims them.
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
		if used >= set.Usable() && !s.someGone(i, set, known) {
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

// Usable returns why no lease of the network can be created below dir, as far as that can be
// seen without trying: a file system that is read-only or full, a directory that is
// immutable or for which the permission is missing, or something else in place of a
// directory. It looks at the nearest directory that exists.
func Usable(dir, network string) error {
	path := filepath.Join(dir, network)
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
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return full(path)
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

// full returns an error for a file system without a free block or inode. Some do not count
// these, as btrfs its inodes, and are not full.
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
