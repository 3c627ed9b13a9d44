package disk

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Open is os.OpenFile for a bare descriptor, with its errors. Go's poller, a thread that
// waits in it and four system calls are for the first file of package os; files need none.
func Open(path string, flags int, mode uint32) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, mode)
	for err == unix.EINTR {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// Create makes a file for its owner alone, to be read and written; where a name stands,
// a link's too, the error is os.ErrExist.
func Create(path string) (*os.File, error) {
	fd, err := Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read returns the content of a regular file of at most limit bytes, with more flags for
// open(2). Anything else in its place, as a pipe, is an error and not waited for.
func Read(path string, flags, limit int) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info, err := Of(fd, path)
	if err != nil {
		return nil, err
	}
	if !info.IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b := make([]byte, 0, max(512, min(int(info.Size), limit)+1)) // those of /proc tell no size
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return b, &os.PathError{Op: "read", Path: path, Err: err}
		case n <= 0:
			return b, nil
		}
		b = b[:len(b)+n]
		if len(b) > limit {
			return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
	}
}

// A DirEntry is a name in a folder. Type is one of the DT_* of readdir(3); file systems
// may leave it at DT_UNKNOWN.
type DirEntry struct {
	Name string
	Type uint8
}

// Offsets in struct linux_dirent64, include/linux/dirent.h.
const (
	direntLength, direntType, direntName = 16, 18, 19

	direntBuffer = 32 << 10
)

// List returns what is in a folder, in any order, without itself and the one above. With
// an error come those that were read before.
func List(path string) ([]DirEntry, error) {
	fd, err := Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return Entries(fd, path)
}

// Entries is [List] of an open folder, from where its descriptor has been read to; path
// is for errors.
func Entries(fd int, path string) ([]DirEntry, error) {
	var entries []DirEntry
	buf := make([]byte, direntBuffer)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return entries, &os.PathError{Op: "readdir", Path: path, Err: err}
		}
		if n <= 0 {
			return entries, nil
		}
		for b := buf[:n]; len(b) > direntName; {
			length := int(binary.NativeEndian.Uint16(b[direntLength:]))
			name, _, _ := strings.Cut(string(b[direntName:length]), "\x00")
			if name != "." && name != ".." {
				entries = append(entries, DirEntry{name, b[direntType]})
			}
			b = b[length:]
		}
	}
}

// tempTries is how many random names are tried; there are 2^64.
const tempTries = 100

// Temp makes a new file for reading and writing, for its owner alone.
func Temp(dir, prefix string) (*os.File, error) {
	for try := 1; ; try++ {
		path := filepath.Join(dir, fmt.Sprintf("%s%016x", prefix, rand.Uint64()))
		f, err := Create(path)
		if err == nil || !os.IsExist(err) || try == tempTries {
			return f, err
		}
	}
}

// Rename gives a file another name, in the place of what has that now.
func Rename(from, to string) error {
	err := unix.Rename(from, to)
	for err == unix.EINTR {
		err = unix.Rename(from, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// Real returns the absolute path of a file or folder, without symbolic links.
func Real(path string) (string, error) {
	fd, err := Open(path, unix.O_PATH, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// Absolute returns a path from the root, by the working directory; links stay.
func Absolute(path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	if err != nil {
		return "", os.NewSyscallError("getcwd", err)
	}
	cwd, _, _ := strings.Cut(string(buf[:n]), "\x00")
	return filepath.Join(cwd, path), nil
}
