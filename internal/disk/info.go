// Package disk asks the kernel about files as package os does, without its FileInfo and
// all that comes along with it, which were 45 KB of the binary. It also reads small files
// in the one way in which nothing hangs or grows: regular ones, up to a limit.
//
// Errors are *os.PathError, as those of package os.
package disk

import (
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An Info is what stat(2) says of a file.
type Info struct {
	Dev, Ino uint64 // together they tell files apart
	Mode     uint32 // type and permissions, as in inode(7)
	Size     int64  // bytes
	modified int64  // nanoseconds since 1970
}

// Stat asks about the file that a path leads to.
func Stat(path string) (Info, error) {
	return infoOf("stat", path, func(st *unix.Stat_t) error { return unix.Stat(path, st) })
}

// Lstat is [Stat] of a symbolic link itself.
func Lstat(path string) (Info, error) {
	return infoOf("lstat", path, func(st *unix.Stat_t) error { return unix.Lstat(path, st) })
}

// Of asks about an open file; path is for errors.
func Of(fd int, path string) (Info, error) {
	return infoOf("stat", path, func(st *unix.Stat_t) error { return unix.Fstat(fd, st) })
}

// infoOf asks again when a signal came in between, as file systems over a network may
// tell.
func infoOf(op, path string, ask func(*unix.Stat_t) error) (Info, error) {
	var st unix.Stat_t
	err := ask(&st)
	for err == unix.EINTR {
		err = ask(&st)
	}
	if err != nil {
		return Info{}, &os.PathError{Op: op, Path: path, Err: err}
	}
	return Info{uint64(st.Dev), uint64(st.Ino), st.Mode, st.Size, st.Mtim.Nano()}, nil
}

// IsRegular, IsDir and IsLink tell the type.
func (i Info) IsRegular() bool { return i.Mode&unix.S_IFMT == unix.S_IFREG }
func (i Info) IsDir() bool     { return i.Mode&unix.S_IFMT == unix.S_IFDIR }
func (i Info) IsLink() bool    { return i.Mode&unix.S_IFMT == unix.S_IFLNK }

// Same reports whether both are one file.
func (i Info) Same(o Info) bool { return i.Dev == o.Dev && i.Ino == o.Ino }

// Age is how long ago the content was changed.
func (i Info) Age() time.Duration { return time.Duration(time.Now().UnixNano() - i.modified) }

// NotDir reports whether something stands at a path that is no folder.
func NotDir(path string) bool {
	i, err := Stat(path)
	return err == nil && !i.IsDir()
}

// MakeDir makes a folder and those above it that are missing; one that is there is fine.
func MakeDir(path string, mode uint32) error {
	if i, err := Stat(path); err == nil && i.IsDir() {
		return nil
	} else if err == nil {
		return &os.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
	}
	if above := parent(path); above != path {
		if err := MakeDir(above, mode); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, os.FileMode(mode))
	if errors.Is(err, os.ErrExist) { // made meanwhile, or the path ends in a dot
		if i, serr := Stat(path); serr == nil && i.IsDir() {
			return nil
		}
	}
	return err
}

// parent is the path without its last name.
func parent(path string) string {
	path = strings.TrimRight(path, "/")
	end := strings.LastIndexByte(path, '/')
	if end < 0 {
		return "."
	}
	if above := strings.TrimRight(path[:end], "/"); above != "" {
		return above
	}
	return "/"
}
