package disk

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Read returns the content of a regular file of at most limit bytes, with more flags for
// open(2). Anything else in its place, as a pipe, is an error and not waited for.
func Read(path string, flags, limit int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := Of(f)
	if err != nil {
		return nil, err
	}
	if !info.IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if len(b) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, err
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

// Entries returns what is in an open folder, in any order, without itself and the one
// above. With an error come those that were read before.
func Entries(dir *os.File) ([]DirEntry, error) {
	var entries []DirEntry
	buf := make([]byte, direntBuffer)
	for {
		n, err := unix.Getdents(int(dir.Fd()), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return entries, &os.PathError{Op: "readdir", Path: dir.Name(), Err: err}
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

// Names is [Entries] without the types.
func Names(dir *os.File) ([]string, error) {
	entries, err := Entries(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	return names, err
}

// tempTries is how many random names are tried; there are 2^64.
const tempTries = 100

// Temp makes a new file for reading and writing, for its owner alone.
func Temp(dir, prefix string) (*os.File, error) {
	for try := 1; ; try++ {
		path := filepath.Join(dir, fmt.Sprintf("%s%016x", prefix, rand.Uint64()))
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
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
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
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
