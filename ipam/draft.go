package ipam

import (
	"errors"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// A draft is a lease without an address: a file that has its content but no
// name yet, so that a process killed at any moment leaves either a whole lease
// or none.
//
// The reference creates the name first and writes then. Killed in between it leaves
// an empty file, which nobody owns and which holds the address for ever.
type draft struct {
	lease Lease
	fd    int // -1: the file system has no nameless files
}

// newDraft writes the content of a lease. With durable the content is on disk before any
// name is. The caller closes it. No file of the directory has changed yet.
func (d folder) newDraft(l Lease, durable bool) (*draft, error) {
	w := &draft{lease: l, fd: -1}
	err := d.change("create lease", "", func() (err error) {
		w.fd, err = unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		if noNameless(err) {
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
func (w *draft) fill(fd int, durable bool) error {
	if _, err := file(fd).WriteAt([]byte(w.lease.text()), 0); err != nil {
		return err
	}
	if durable {
		return unix.Fsync(fd)
	}
	return nil
}

// close gives the file up; the content lives on under the names it was given.
func (w *draft) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

// publish gives the draft its address; false: that is taken.
// The name is on disk only after [folder.sync].
func (d folder) publish(w *draft, a netip.Addr, durable bool) (bool, error) {
	name := a.String()
	err := d.change("link lease", name, func() error {
		if w.fd < 0 {
			return unix.EOPNOTSUPP
		}
		return unix.Linkat(unix.AT_FDCWD, procPath(w.fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	})
	// The link may be refused where the file was not, as without /proc.
	if noNameless(err) {
		err = d.writeInPlace(w, name, durable)
	}
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// sync has the names of the directory on disk.
func (d folder) sync() error {
	return d.change("sync", ".", func() error { return unix.Fsync(d.fd) })
}

// procPath names an open file, also one without a name of its own.
// linkat(2) has it so: AT_EMPTY_PATH needs a capability.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// writeInPlace is publish as the reference does it, for file systems without
// nameless files. What a killed process leaves has no owner and is set aside
// when the address is wanted.
func (d folder) writeInPlace(w *draft, name string, durable bool) error {
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

// noNameless reports whether err says that O_TMPFILE or linking its file is not
// to be had here: not on this file system, this old kernel, or without /proc.
// EISDIR is what kernels before 3.11 say, ENOENT where /proc is not mounted.
func noNameless(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM)
}
