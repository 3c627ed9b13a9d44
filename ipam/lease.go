package ipam

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// maxLease is the largest lease file that is read, in bytes. A container ID
// and an interface name, each as long as a file name, are far below it.
const maxLease = 1024

// A Lease is the owner of an address as its file has it.
type Lease struct {
	ContainerID string
	IfName      string // empty: any; releases of host-local up to 0.7 wrote none
}

func (l Lease) String() string {
	if l.IfName == "" {
		return "container " + l.ContainerID
	}
	return "container " + l.ContainerID + ", interface " + l.IfName
}

// Owns reports whether the lease is the attachment's.
func (l Lease) Owns(o spec.Attachment) bool {
	return l.ContainerID == o.ContainerID && (l.IfName == o.IfName || l.IfName == "")
}

// text is the content of a lease file: container ID, CR LF, interface.
func (l Lease) text() string {
	if l.IfName == "" {
		return l.ContainerID
	}
	return l.ContainerID + "\r\n" + l.IfName
}

// parseLease reads the content of a lease file; false: no owner can be read in it.
func parseLease(content []byte) (Lease, bool) {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(content)), "\n")
	l := Lease{strings.TrimSpace(id), strings.TrimSpace(ifName)}
	return l, l.ContainerID != "" && plainText(l.ContainerID) && plainText(l.IfName)
}

// plainText reports whether s is without white space and control bytes, which
// fill lease files after a power cut.
func plainText(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// leaseName reads the name of a lease file: an address in its canonical text
// form. All other names are no leases.
func leaseName(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && a.String() == name
}

// A draft is a lease without an address: a file that has its content but no
// name yet, so that a process killed at any moment leaves either a whole lease
// or none.
type draft struct {
	lease Lease
	fd    int // -1: the file system has no nameless files
	mark  *unix.Timespec
}

// newDraft writes the content of a lease. mark, if not nil, becomes the time of
// modification. With durable the content is on disk before any name is.
func (d folder) newDraft(l Lease, mark *unix.Timespec, durable bool) (*draft, error) {
	w := &draft{lease: l, fd: -1, mark: mark}
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

// fill writes content and time of modification. Without the time, as where
// /proc is missing, the lease is as one of the reference's: kept for longer.
func (w *draft) fill(fd int, durable bool) error {
	if _, err := file(fd).WriteAt([]byte(w.lease.text()), 0); err != nil {
		return err
	}
	if w.mark != nil {
		unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, *w.mark}, 0)
	}
	if durable {
		return unix.Fsync(fd)
	}
	return nil
}

func (w *draft) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
		w.fd = -1
	}
}

// publish gives the draft its address; false: that is taken.
func (d folder) publish(w *draft, a netip.Addr, durable bool) (bool, error) {
	name := a.String()
	err := d.change("link lease", name, func() error {
		if w.fd < 0 {
			return unix.EOPNOTSUPP
		}
		return unix.Linkat(unix.AT_FDCWD, procPath(w.fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	})
	if noNameless(err) {
		err = d.writeInPlace(w, name, durable)
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case err == nil && durable:
		err = d.change("sync", ".", func() error { return unix.Fsync(d.fd) })
	}
	return err == nil, err
}

// procPath names an open file, also one without a name of its own.
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
func noNameless(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM)
}

// lease reads the lease file of an address. Errors are os.ErrNotExist if there
// is none, and errNoOwner around the reason if none can be read in it.
func (d folder) lease(a netip.Addr) (Lease, unix.Stat_t, error) {
	content, st, err := d.read(a.String(), maxLease)
	if errors.Is(err, unix.ENOENT) {
		return Lease{}, st, err
	}
	if err != nil {
		return Lease{}, st, fmt.Errorf("%w: %w", errNoOwner, err)
	}
	l, ok := parseLease(content)
	if !ok {
		return Lease{}, st, d.fail("read", a.String(), errNoOwner)
	}
	return l, st, nil
}

// last returns the hint of a range set where the search goes on; false: none.
func (d folder) last(set int) (netip.Addr, bool) {
	content, _, err := d.read(lastName(set), maxLease)
	if err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap(), err == nil
}

// setLast writes the hint in place: half of it is as good as none.
func (d folder) setLast(set int, a netip.Addr) error {
	name, text := lastName(set), a.String()
	return d.change("write", name, func() error {
		fd, _, err := d.openFile(name, unix.O_WRONLY|unix.O_CREAT)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, err := io.NewOffsetWriter(file(fd), 0).Write([]byte(text)); err != nil {
			return err
		}
		return unix.Ftruncate(fd, int64(len(text)))
	})
}

func lastName(set int) string { return "last_reserved_ip." + strconv.Itoa(set) }

// now returns the current second with nanoseconds of the caller's choice.
func now(nsec int64) unix.Timespec { return unix.Timespec{Sec: time.Now().Unix(), Nsec: nsec} }
