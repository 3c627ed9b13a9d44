package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// A Sysctl is a network setting of the kernel. Most are per namespace:
// Documentation/networking/ip-sysctl.rst, and admin-guide/sysctl/net.rst.
type Sysctl struct {
	Key   string // the path below /proc/sys, as net/ipv4/ip_forward
	Value string

	// Optional ignores the error if the kernel lacks the setting, such as an IPv6 setting without
	// IPv6, or if /proc/sys is read-only.
	Optional bool

	// Differs says that the current value mostly differs, as for a new link: the value is written
	// without reading it first.
	Differs bool
}

// Sysctl reads a setting, without the newline; os.ErrNotExist if the kernel lacks it.
func (ns *NS) Sysctl(key string) (string, error) {
	var value string
	err := ns.Do(func() (err error) {
		value, err = readSysctl(key)
		return err
	})
	return value, err
}

// SetSysctl writes a setting; see [NS.SetSysctls].
func (ns *NS) SetSysctl(key, value string) error {
	return ns.SetSysctls(Sysctl{Key: key, Value: value})
}

// SetSysctls writes settings in order, up to the first error. A setting that has the value already
// is not written, so a read-only /proc is not an error there.
func (ns *NS) SetSysctls(settings ...Sysctl) error {
	return ns.Do(func() error {
		for _, s := range settings {
			if err := s.set(); err != nil {
				return err
			}
		}
		return nil
	})
}

// SameSysctl reports whether two values mean the same. The kernel separates the numbers of a list by
// tabs, configurations by spaces; the kernel writes addresses in full.
func SameSysctl(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return a == b || err == nil && x == y || strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

// set sets the value in the namespace of the calling thread, unless it has it; with Differs it does
// not read it first. Errors are those of write.
func (s Sysctl) set() error {
	if !s.Differs || checkSysctl(s.Key) != nil {
		return s.write()
	}
	err := fault.Change("sysctl "+s.Key+" = "+s.Value, func() error { return writeSysctl(s.Key, s.Value) })
	if errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		return s.write()
	}
	return err
}

// write sets the value in the namespace of the calling thread, unless it has it. Errors are
// os.ErrNotExist, os.ErrPermission, unix.EROFS if /proc is mounted read-only, and unix.EINVAL for a
// key out of bounds or a value that the kernel rejects.
func (s Sysctl) write() error {
	old, err := readSysctl(s.Key)
	if err == nil && SameSysctl(old, s.Value) {
		return nil
	}
	if s.Optional && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil && !Unreadable(err) {
		return err
	}
	err = fault.Change("sysctl "+s.Key+" = "+s.Value, func() error { return writeSysctl(s.Key, s.Value) })
	if s.Optional && errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}

// writeSysctl writes the value in one call: the kernel treats each write as a whole value.
func writeSysctl(key, value string) error {
	fd, err := unix.Open("/proc/sys/"+key, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value+"\n"))
	return err
}

// Unreadable reports whether an error is about reading a setting that can only be written, or about
// stable_secret of IPv6 before it is set (EIO).
func Unreadable(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EIO)
}

// longestSysctl is larger than any network setting, in bytes: the kernel reads and writes at most a
// page at a time.
const longestSysctl = 4096

// checkSysctl rejects settings outside net, which apply to the whole machine.
func checkSysctl(key string) error {
	if !strings.HasPrefix(key, "net/") || path.Clean(key) != key || strings.ContainsRune(key, 0) {
		return fmt.Errorf("sysctl %q is not a path below net/: %w", key, unix.EINVAL)
	}
	return nil
}

// readSysctl reads in the namespace of the calling thread, on which the content of
// /proc/sys/net depends. The value comes without its last newline.
func readSysctl(key string) (string, error) {
	if err := checkSysctl(key); err != nil {
		return "", err
	}
	fd, err := unix.Open("/proc/sys/"+key, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", key, err)
	}
	defer unix.Close(fd)
	b := make([]byte, longestSysctl)
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", key, err)
	}
	return strings.TrimSuffix(string(b[:n]), "\n"), nil
}
