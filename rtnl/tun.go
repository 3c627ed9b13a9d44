package rtnl

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// A Tap has the fixed settings of a tap device: a link whose other end is a program, such as a
// virtual machine, that opens /dev/net/tun. The zero value is a tap with one queue that only a
// process with CAP_NET_ADMIN can open.
type Tap struct {
	MultiQueue bool    // several descriptors may be open at a time; the opener must also request this
	Owner      *uint32 // user ID that may open it; nil: only root
	Group      *uint32 // group ID likewise
}

// tunDevice creates and opens tun and tap devices: Documentation/networking/tuntap.rst.
const tunDevice = "/dev/net/tun"

// tunExcl is IFF_TUN_EXCL, include/uapi/linux/if_tun.h: a name that is taken is an error.
const tunExcl = 0x8000

// CreateTap creates a persistent tap device in the namespace of the calling thread ([netns.NS.Do]),
// since netlink cannot create one. The error is os.ErrExist if the name is taken, and
// os.ErrNotExist if there is no tun device. On an error there is no new device.
//
// Each opener chooses whether packets start with a struct tun_pi or a struct virtio_net_hdr;
// CreateTap uses the flags with which virtual machines open the device.
func CreateTap(name string, t Tap) error {
	return fault.Change("tap add "+name, func() error { return t.create(name) })
}

// create opens the device and does the ioctls; the last ioctl makes the tap persistent.
func (t Tap) create(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", tunDevice, asNotExist(err, 0))
	}
	defer unix.Close(fd) // this deletes a device that is not persistent yet
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | tunExcl)
	if t.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	if err == unix.EBUSY {
		return unix.EEXIST
	}
	if err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	for _, set := range []struct {
		name string
		req  uint
		to   *uint32
	}{
		{"TUNSETOWNER", unix.TUNSETOWNER, t.Owner},
		{"TUNSETGROUP", unix.TUNSETGROUP, t.Group},
		{"TUNSETPERSIST", unix.TUNSETPERSIST, new(uint32(1))},
	} {
		if set.to == nil {
			continue
		}
		if err := unix.IoctlSetInt(fd, set.req, int(*set.to)); err != nil {
			return os.NewSyscallError(set.name, err)
		}
	}
	return nil
}

// ProbeTap reports whether taps can be created: the device exists, and this process may open it.
func ProbeTap() error {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", tunDevice, asNotExist(err, 0))
	}
	return unix.Close(fd)
}

// OpenTun creates a tun device whose name is a pattern with %d in the namespace of the calling thread. What is written to the file are packets of IP that
// the link receives. The link is deleted with the file. The error is as that of [CreateTap].
func OpenTun(pattern string) (f *os.File, name string, err error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", tunDevice, asNotExist(err, 0))
	}
	req, err := unix.NewIfreq(pattern)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
	}
	if err != nil {
		unix.Close(fd)
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), tunDevice), req.Name(), nil
}
