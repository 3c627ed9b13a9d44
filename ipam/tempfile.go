package ipam

import (
	"errors"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
)

// A tempFile is a lease without an address: an unnamed temporary file (O_TMPFILE in open(2)) that
// has the content already, so that a process killed at any moment leaves either a whole lease or
// nothing.
//
// The reference creates the name first and writes then. If it is killed in between, it leaves an
// empty file, which has no owner and prevents the address from being leased again.
type tempFile struct {
	lease Lease
	fd    int // -1: the file system has no unnamed files
}

// newTempFile writes the content of a lease. With durable, the content is on disk before any name
// is. The caller closes it. The directory has not changed yet.
func (d directory) newTempFile(l Lease, durable bool) (*tempFile, error) {
	w := &tempFile{lease: l, fd: -1}
	err := d.change("create lease", "", func() (err error) {
		w.fd, err = unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		if noUnnamed(err) {
			return w, nil
		}
		return nil, err
	}
	err = d.change("write lease", "", func() error {
		return w.fill(w.fd, durable)
	})
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// fill writes the content. The file is new and empty; fd is open for writing.
func (w *tempFile) fill(fd int, durable bool) error {
	if _, err := file(fd).WriteAt([]byte(w.lease.text()), 0); err != nil {
		return err
	}
	if durable {
		return unix.Fsync(fd)
	}
	return nil
}

// close closes the file, which keeps its names.
func (w *tempFile) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

// link gives the file the name of an address; false: the name is taken. The name is on disk only
// after [directory.sync].
func (d directory) link(w *tempFile, a netip.Addr, durable bool) (bool, error) {
	name := a.String()
	err := disk.Change("ipam: link lease", func() error {
		if w.fd < 0 {
			return unix.EOPNOTSUPP
		}
		return unix.Linkat(unix.AT_FDCWD, procPath(w.fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	})
	if err != nil {
		err = d.fail("link lease", name, err)
	}
	// The link may be rejected where the file was not, as without /proc.
	if noUnnamed(err) {
		err = d.writeInPlace(w, name, durable)
	}
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// sync writes the names in the directory to disk.
func (d directory) sync() error {
	return d.change("sync", ".", func() error { return unix.Fsync(d.fd) })
}

// procPath returns a path of an open file, also of an unnamed one, as in linkat(2): AT_EMPTY_PATH
// needs a capability.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// writeInPlace is link as the reference does it, for file systems without unnamed files. The
// file of a killed process has no owner and is quarantined when the address is needed.
func (d directory) writeInPlace(w *tempFile, name string, durable bool) error {
	fd, err := d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = d.change("write lease", name, func() error { return w.fill(fd, durable) })
	if err != nil {
		unix.Unlinkat(d.fd, name, 0)
	}
	return err
}

// noUnnamed reports whether an error means that O_TMPFILE, or linking its file, does not work here:
// on this file system, on an old kernel, or without /proc. Kernels before 3.11 return EISDIR, and
// ENOENT means that /proc is not mounted.
func noUnnamed(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM)
}
