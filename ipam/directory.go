package ipam

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
)

// careful are the flags of every open of a file in the store: no symbolic link
// is followed, and no pipe, socket or device is waited for.
// The directory may hold what others have put there: the data directory is often
// shared with the reference's plugins, and a path in the configuration.
const careful = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// errNotRegular is the error of a directory, pipe, socket or device in place of a file.
var errNotRegular = errors.New("not a regular file")

// A directory is an open directory. The names its methods take are single path
// components, so nothing leads out of it.
// A descriptor of -1 is one that is not open; the zero value is not usable.
type directory struct {
	fd   int
	path string // for messages
}

// openDirectory opens a directory by a path of the administrator's, whose symbolic
// links are followed.
// The error is os.ErrNotExist if there is none.
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

// close does nothing to a directory that is not open.
func (d directory) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
}

// open opens a file in d; the caller closes the descriptor.
// A symbolic link in the last place is ELOOP. The directory is the open one, so a
// rename on the way to it changes nothing.
func (d directory) open(name string, flags int, mode uint32) (int, error) {
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

// openFile is open for regular files; anything else is errNotRegular.
// mode is 0600 for one that is created.
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

// regular returns the attributes of an open file; errNotRegular if it is not a regular one.
func regular(fd int) (st unix.Stat_t, err error) {
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	return st, err
}

// read returns the content of a regular file of at most limit bytes, and its
// attributes.
// A larger one is EFBIG.
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
	return content, st, nil
}

// names lists the directory.
// They come in no order, without . and .. among them.
func (d directory) names() ([]string, error) {
	// A descriptor of its own: reading a directory moves its offset.
	fd, err := d.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// target returns what a symbolic link leads to.
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
		const fresh = ".new" // no owner's: their names have a colon
		unix.Unlinkat(d.fd, fresh, 0)
		if err := unix.Symlinkat(target, d.fd, fresh); err != nil {
			return err
		}
		return unix.Renameat(d.fd, fresh, d.fd, name)
	})
}

// remove deletes a file; one that is not there is os.ErrNotExist.
func (d directory) remove(name string) error {
	return d.change("remove", name, func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// change runs a call that changes name on disk; all of the package's go through here.
func (d directory) change(what, name string, call func() error) error {
	if err := disk.Change("ipam: "+what, call); err != nil {
		return d.fail(what, name, err)
	}
	return nil
}

// fail names the file in an error; the errno stays for errors.Is.
func (d directory) fail(what, name string, err error) error {
	return &os.PathError{Op: what, Path: filepath.Join(d.path, name), Err: err}
}

// A file is an open file; reads and writes leave no position behind.
// The number is its descriptor, which the caller closes.
type file int

// content returns the first size bytes of the file, which must not be more than limit.
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

// ReadAt is that of [io.ReaderAt]; calls that a signal interrupts are repeated.
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

// WriteAt is that of [io.WriterAt]; calls that a signal interrupts are repeated.
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
