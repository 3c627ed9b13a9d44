// Package nsid opens network namespaces by their path, identifies and enters them. It is what
// rtnl, which works in namespaces, and chain, which only has to know whether one still exists,
// have in common.
package nsid

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotNS is returned for a path that exists and is no network namespace.
var ErrNotNS = errors.New("not a network namespace")

// Thread is the path of the network namespace of the thread that opens it.
const Thread = "/proc/thread-self/ns/net"

// An ID identifies a namespace among all that exist, by device and inode. Once a namespace
// has ended the kernel may give its ID to a new one, see [Cookie]. The zero value is that of
// none.
type ID struct {
	Dev uint64 `json:"dev,omitempty"`
	Ino uint64 `json:"ino,omitempty"`
}

// String returns device:inode, in decimal.
func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Dev, id.Ino) }

// Open opens the network namespace at path; the caller closes the descriptor. The error is
// os.ErrNotExist if there is no such file or the path is empty, and [ErrNotNS] if the file is
// something else or the path leads through one. The file is never created, and never waited
// for.
func Open(path string) (fd int, err error) {
	if path == "" {
		return -1, &os.PathError{Op: "open", Err: unix.ENOENT}
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		err = &os.PathError{Op: "open", Path: path, Err: err}
		if permanent(err) {
			return -1, fmt.Errorf("%w: %w", err, ErrNotNS)
		}
		return -1, fmt.Errorf("network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", path, ErrNotNS)
	}
	return fd, nil
}

// Reason returns why [Open] has refused a path, without the path, for errors that have it.
func Reason(err error) error {
	var file *os.PathError
	switch {
	case errors.As(err, &file):
		return file.Err
	case errors.Is(err, ErrNotNS):
		return ErrNotNS
	}
	return err
}

// permanent reports whether an error of open(2) is one that no retry and no privilege
// resolves: a file among the directories of the path, links in a circle, a socket, a NUL in
// the path, and a path that is too long.
func permanent(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.EINVAL, unix.ENAMETOOLONG} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Of returns the ID of an open network namespace.
func Of(fd int) (ID, error) {
	var st unix.Stat_t
	return identify(&st, unix.Fstat(fd, &st))
}

// Current returns the ID of the calling thread's network namespace.
func Current() (ID, error) {
	var st unix.Stat_t
	return identify(&st, unix.Stat(Thread, &st))
}

func identify(st *unix.Stat_t, err error) (ID, error) {
	if err != nil {
		return ID{}, fmt.Errorf("network namespace: %w", err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil
}

// At returns the ID of the network namespace at path. Errors are those of [Open].
func At(path string) (ID, error) {
	fd, err := Open(path)
	if err != nil {
		return ID{}, err
	}
	defer unix.Close(fd)
	return Of(fd)
}
