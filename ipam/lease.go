package ipam

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// maxLease is the size limit of a lease file in bytes. A container ID and an interface name, each
// as long as a file name, need far less. A larger file is not a lease.
const maxLease = 1024

// A Lease is the owner of an address in its lease file. The directory gives the network.
type Lease struct {
	ContainerID string
	IfName      string // empty: the file has none, as of host-local up to 0.7
}

// String formats the owner for messages.
func (l Lease) String() string {
	if l.IfName == "" {
		return "container " + l.ContainerID
	}
	return "container " + l.ContainerID + ", interface " + l.IfName
}

// Owns reports whether the lease belongs to the attachment, whose network must be the store's. One
// without an interface belongs to whichever of its container's attachments has the address.
func (l Lease) Owns(o spec.Attachment) bool {
	return l.ContainerID == o.ContainerID && (l.IfName == o.IfName || l.IfName == "")
}

// text returns the content of a lease file: container ID, CR LF, interface. It ends without a
// newline, since other readers compare bytes. A lease without an interface is written for the index
// only.
func (l Lease) text() string {
	if l.IfName == "" {
		return l.ContainerID
	}
	return l.ContainerID + "\r\n" + l.IfName
}

// parseLease parses the content of a lease file; false: it has no readable owner. It accepts any
// line end and surrounding blanks, as the reference trims them. It does not check the names: an
// address whose owner has an invalid name is leased too.
func parseLease(content []byte) (Lease, bool) {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(content)), "\n")
	l := Lease{strings.TrimSpace(id), strings.TrimSpace(ifName)}
	return l, l.ContainerID != "" && plainText(l.ContainerID) && plainText(l.IfName)
}

// plainText reports whether s has no white space and no control bytes, which fill lease files after
// a power cut.
func plainText(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// leaseName parses the name of a lease file: an address in its canonical text form. Other names are
// not leases, such as lock, last_reserved_ip.N, and ::ffff:1.2.3.4, which no tool writes. IPv6
// names have colons, as the reference writes them everywhere except on Windows.
func leaseName(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && a.String() == name
}

// lease reads the lease file of an address. The error is os.ErrNotExist if there is none, and
// errNoOwner around the reason if the file has no readable owner. The attributes are those of the
// file that was read.
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

// last returns the address at which the search in a range set continues; false: it cannot be read.
// The address may be outside the set.
func (d directory) last(set int) (netip.Addr, bool) {
	content, _, err := d.read(lastName(set), maxLease)
	if err != nil {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(strings.TrimSpace(string(content)))
	return a.Unmap(), err == nil
}

// setLast writes the file in place, since half of it does no harm. It truncates the file after
// writing, not before, so that the file is never empty.
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

// lastName returns the reference's name of that file; sets are numbered from 0 in the order of the
// configuration.
func lastName(set int) string { return "last_reserved_ip." + strconv.Itoa(set) }
