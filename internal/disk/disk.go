// Package disk reads and changes small files. Use [Read] for files of other programs: it does not wait
// for a pipe, and has a size limit; and [List] for directories that grow with the attachments. Use [Replace] for a
// file that readers must see completely or not at all, and [Output] for one at a path that a user names. All other
// changes of state on disk use [Remove], [Rename] or [Change], since tests make them
// fail one by one.
package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// Read returns the content of a regular file of at most limit bytes, opened with flags beside
// O_RDONLY: unix.O_NOFOLLOW where a symbolic link must not be followed, or 0. A larger file is an
// error, and so is a file of another type, such as a pipe. Errors of system calls are *os.PathError.
//
// It does not use os.File, since the first one starts Go's poller, and without free descriptors the
// runtime then ends the process.
func Read(path string, flags, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	fault.Done(fault.Files, 1)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	var b []byte
	for len(b) <= limit && (st.Size == 0 || int64(len(b)) != st.Size) { // files of /proc have size 0
		b = slices.Grow(b, max(int(min(st.Size, int64(limit)))+1-len(b), leastRead))
		n, err := read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	if st.Size > 0 {
		fault.Done(fault.Bytes, len(b))
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, nil
}

// List is [os.ReadDir] that tests can count.
func List(dir string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	fault.Done(fault.Lists, 1)
	fault.Done(fault.Names, len(entries))
	return entries, err
}

// LookUp is [os.Stat] of a program that tests can count.
func LookUp(path string) (os.FileInfo, error) {
	fault.Done(fault.Lookups, 1)
	return os.Stat(path)
}

// leastRead is the smallest buffer for one read, in bytes.
const leastRead = 512

// read is read(2), repeated when a signal interrupts it.
func read(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}

// Change runs do, which changes files; what names the change for tests, which can make the nth one fail
// ([fault.Hook]). All changes of files use it: through [Replace], [Remove] and [Rename], or directly
// where these do not fit, as in a directory that is open.
func Change(what string, do func() error) error {
	if err := fault.Check(what); err != nil {
		return err
	}
	return do()
}

// Remove deletes a file, or an empty directory. It is not an error if there is nothing at path.
// Errors are *os.PathError.
func Remove(path string) error {
	// On a read-only file system, unlink(2) returns EROFS even if there is no file.
	_, err := os.Lstat(path)
	if err == nil {
		err = Change("remove "+filepath.Base(path), func() error { return os.Remove(path) })
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// Rename moves a file within its file system, and replaces an existing file.
// Errors are *os.LinkError.
func Rename(from, to string) error {
	return Change("rename "+filepath.Base(from), func() error { return os.Rename(from, to) })
}

// How has the options of [Replace], combined with |. The zero value has none.
type How uint8

const (
	New     How = 1 << iota // os.ErrExist if the name is taken
	Durable                 // content and name are on disk before it returns
)

// Replace writes a file of mode 0600 atomically: readers see the old or the complete new content, even
// if the process is killed. A symbolic link at path is replaced, not followed. A missing directory is
// created with mode 0700. After an error the old file remains, but with [Durable] the new one may be
// there: the sync of the directory comes last.
//
// temp is the path of the temporary file, in the same directory. One that a killed process left is
// replaced, so callers with the same temp must not run at the same time.
func Replace(path, temp string, content []byte, how How) error {
	return Change("write "+filepath.Base(path), func() error { return replace(path, temp, content, how, nil) })
}

// Output writes a file at a path that a user names, whose directory may be another user's: a new file,
// which replaces the one that is there and gets its owner and mode, else mode. What is no regular file
// is an error, and so is a symbolic link: nothing is opened that was there, so nothing is overwritten
// through a link, and no pipe waits for a reader. Nothing is left after an error.
func Output(path string, content []byte, mode os.FileMode) error {
	own := unix.Stat_t{Mode: uint32(mode.Perm()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	case st.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link: name the file itself", path)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	default:
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			own.Mode, own.Uid, own.Gid = uint32(st.Mode().Perm()), sys.Uid, sys.Gid
		}
	}
	temp := fmt.Sprintf("%s.%016x.new", path, rand.Uint64()) // unique: several may write the same file
	return Change("write "+filepath.Base(path), func() error { return replace(path, temp, content, 0, &own) })
}

// replace is [Replace] without the hook, and with own [Output]: the file has its owner and mode, and no
// directory is created.
func replace(path, temp string, content []byte, how How, own *unix.Stat_t) error {
	fd, err := create(temp)
	if own == nil && errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			fd, err = create(temp)
		}
	}
	if errors.Is(err, os.ErrExist) {
		if err = os.Remove(temp); err == nil {
			fd, err = create(temp)
		}
	}
	if err != nil {
		return err
	}
	if err = fill(fd, content, how); err == nil && own != nil {
		err = giveTo(fd, own)
	}
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err != nil {
		err = &os.PathError{Op: "write", Path: temp, Err: err}
	} else {
		err = rename(temp, path, how)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if how&Durable != 0 {
		return syncDir(filepath.Dir(path))
	}
	return nil
}

// create creates a file of mode 0600, without os.File as in [Read].
func create(path string) (fd int, err error) {
	for {
		fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
			continue
		}
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
}

// fill writes the content, and with [Durable] syncs it.
func fill(fd int, content []byte, how How) error {
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil && err != unix.EINTR {
			return err
		}
		content = content[max(n, 0):]
	}
	if how&Durable == 0 {
		return nil
	}
	return unix.Fsync(fd)
}

// giveTo gives a new file its owner and mode. Without privilege it stays with the user who writes it.
func giveTo(fd int, own *unix.Stat_t) error {
	if err := unix.Fchown(fd, int(own.Uid), int(own.Gid)); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return unix.Fchmod(fd, own.Mode&0o777)
}

// rename replaces path, or with [New] fails if it exists. Some file systems, such as NFS, and Linux
// before 3.15 do not support RENAME_NOREPLACE; FAT does not support link(2).
func rename(temp, path string, how How) error {
	if how&New == 0 {
		err := unix.Rename(temp, path) // without the lstat(2) of os.Rename
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EISDIR):
			err = unix.EEXIST
		}
		return &os.LinkError{Op: "rename", Old: temp, New: path, Err: err}
	}
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		if err := os.Link(temp, path); err != nil {
			return err
		}
		return os.Remove(temp)
	}
	return &os.LinkError{Op: "rename", Old: temp, New: path, Err: err}
}

// syncDir writes the names in a directory to disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
