package ipam

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// maxLease is the largest lease file that is read, in bytes. A container ID
// and an interface name, each as long as a file name, are far below it.
// A larger file is not a lease.
const maxLease = 1024

// A Lease is the owner of an address as its file has it. The network is the directory's.
type Lease struct {
	ContainerID string
	IfName      string // empty: the file names none, so the lease is of no attachment
}

// String names the owner for people.
func (l Lease) String() string {
	if l.IfName == "" {
		return "container " + l.ContainerID
	}
	return "container " + l.ContainerID + ", interface " + l.IfName
}

// Owns reports whether the lease is the attachment's.
// The network is that of the store.
func (l Lease) Owns(o spec.Attachment) bool {
	return l.ContainerID == o.ContainerID && l.IfName == o.IfName
}

// text is the content of a lease file: container ID, CR LF, interface.
// Without a newline at the end: other readers compare bytes. One without an interface
// is written for the index alone.
func (l Lease) text() string {
	if l.IfName == "" {
		return l.ContainerID
	}
	return l.ContainerID + "\r\n" + l.IfName
}

// parseLease reads the content of a lease file; false: no owner can be read in it.
// Any line end will do, and blanks around, as the reference trims them. The names are not
// checked: an address whose owner has an invalid name is leased too.
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
// form. All other names are not leases.
// lock and last_reserved_ip.N are among the others, and ::ffff:1.2.3.4, which no tool
// writes. IPv6 has its colons, as on all of the reference's systems but Windows.
func leaseName(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && a.String() == name
}

// lease reads the lease file of an address. Errors are os.ErrNotExist if there
// is none, and errNoOwner around the reason if none can be read in it.
// The attributes are those of the file that was read.
func (d directory) lease(a netip.Addr) (Lease, unix.Stat_t, error) {
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

// last returns where the search in a range set goes on; false: it cannot be read.
// The address may not be of the set any more.
func (d directory) last(set int) (netip.Addr, bool) {
	content, _, err := d.read(lastName(set), maxLease)
	if err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap(), err == nil
}

// setLast writes the file in place, since half of it does no harm. It is truncated after
// that, not before, so that it is never empty.
func (d directory) setLast(set int, a netip.Addr) error {
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

// lastName is the reference's name of that file; sets are counted from 0 in the
// order of the configuration.
func lastName(set int) string { return "last_reserved_ip." + strconv.Itoa(set) }
