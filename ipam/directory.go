package ipam

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/fault"
)

// careful has the flags of every open of a file in the store: an open follows no symbolic link and
// does not block on a pipe, socket or device. Other programs may create files in the directory: it
// is often shared with the reference's plugins, and the configuration sets its path.
const careful = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// errNotRegular is the error if a directory, pipe, socket or device replaces a file.
var errNotRegular = errors.New("not a regular file")

// A directory is an open directory. The names that its methods take are single path components, so
// they cannot refer to anything outside. A descriptor of -1 is not open; the zero value is not
// usable.
type directory struct {
	fd   int
	path string // for error messages
}

// openDirectory opens a directory by a path from the configuration and follows its symbolic links.
// The error is os.ErrNotExist if it does not exist.
func openDirectory(path string) (directory, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{fd: -1}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return directory{fd, path}, nil
}

// sub opens a directory in d, and creates it with mode 0700 if create is set.
// Another process may create it at the same moment.
func (d directory) sub(name string, create bool) (directory, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if create && errors.Is(err, os.ErrNotExist) {
		if err := d.change("mkdir", name, func() error { return unix.Mkdirat(d.fd, name, 0o700) }); err != nil && !errors.Is(err, os.ErrExist) {
			return directory{fd: -1}, err
		}
		fd, err = d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return directory{fd: -1}, err
	}
	return directory{fd, filepath.Join(d.path, name)}, nil
}

// close has no effect on a directory that is not open.
func (d directory) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
}

// open opens a file in d; the caller closes the descriptor. A symbolic link as the last component
// is ELOOP. A rename of a parent directory has no effect, since d is open.
func (d directory) open(name string, flags int, mode uint32) (int, error) {
	fault.Done(fault.Files, 1)
	for {
		fd, err := unix.Openat(d.fd, name, flags|careful, mode)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
			continue
		}
		return -1, d.fail("open", name, err)
	}
}

// openFile is open for regular files; any other file is errNotRegular. A new file has mode 0600.
func (d directory) openFile(name string, flags int) (int, unix.Stat_t, error) {
	fd, err := d.open(name, flags, 0o600)
	if err != nil {
		return -1, unix.Stat_t{}, err
	}
	st, err := regular(fd)
	if err != nil {
		unix.Close(fd)
		return -1, st, d.fail("open", name, err)
	}
	return fd, st, nil
}

// regular returns the attributes of an open file; errNotRegular if it is not a regular file.
func regular(fd int) (st unix.Stat_t, err error) {
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	return st, err
}

// read returns the content of a regular file of at most limit bytes, and its attributes. A larger
// file is EFBIG.
func (d directory) read(name string, limit int) ([]byte, unix.Stat_t, error) {
	fd, st, err := d.openFile(name, unix.O_RDONLY)
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	content, err := file(fd).content(st.Size, limit)
	if err != nil {
		return nil, st, d.fail("read", name, err)
	}
	fault.Done(fault.Bytes, len(content))
	return content, st, nil
}

// names lists the directory in no order, without . and .. entries.
func (d directory) names() ([]string, error) {
	// Reading a directory moves the offset of its descriptor, so open another one.
	fd, err := d.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	fault.Done(fault.Lists, 1)
	fault.Done(fault.Names, len(names))
	return names, err
}

// target returns the target of a symbolic link.
func (d directory) target(name string) (string, error) {
	buf := make([]byte, maxTarget+1)
	n, err := unix.Readlinkat(d.fd, name, buf)
	if err != nil {
		return "", d.fail("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// setTarget creates or replaces a symbolic link.
func (d directory) setTarget(name, target string) error {
	return d.change("symlink", name, func() error {
		err := unix.Symlinkat(target, d.fd, name)
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		const fresh = ".new" // not an owner's mark: their names have a colon
		unix.Unlinkat(d.fd, fresh, 0)
		if err := unix.Symlinkat(target, d.fd, fresh); err != nil {
			return err
		}
		return unix.Renameat(d.fd, fresh, d.fd, name)
	})
}

// remove deletes a file; os.ErrNotExist if it does not exist.
func (d directory) remove(name string) error {
	return d.change("remove", name, func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// change runs a call that changes name on disk; all changes of the package use it.
func (d directory) change(what, name string, call func() error) error {
	if err := disk.Change("ipam: "+what, call); err != nil {
		return d.fail(what, name, err)
	}
	return nil
}

// fail adds the file to an error; errors.Is still matches the errno.
func (d directory) fail(what, name string, err error) error {
	return &os.PathError{Op: what, Path: filepath.Join(d.path, name), Err: err}
}

// A file is the descriptor of an open file, which the caller closes. Reads and writes do not move
// its offset.
type file int

// content returns the first size bytes of the file; size must not exceed limit.
func (f file) content(size int64, limit int) ([]byte, error) {
	if size > int64(limit) {
		return nil, unix.EFBIG
	}
	buf := make([]byte, size)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

// ReadAt implements [io.ReaderAt] and repeats calls that a signal interrupts.
func (f file) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pread(int(f), p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, err
		case n == 0:
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

// WriteAt implements [io.WriterAt] and repeats calls that a signal interrupts.
func (f file) WriteAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pwrite(int(f), p[done:], off+int64(done))
		if err != nil && err != unix.EINTR {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}
