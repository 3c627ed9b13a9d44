package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

// Namespaces are those of a process that calls [Enter]. Its child processes end with it, and it
// ends with the thread that has started it.
func Namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
}

// A mounted entry is a file system of a running Debian, or a file or directory that is shared with
// this machine.
type mounted struct {
	from, to, kind string
	flags          uintptr
}

// Enter makes dir the root of this process, mounts the file systems of a running system and the
// directories that are shared with this machine, and sets up lo.
func Enter(dir string, readOnly, writable []string) error {
	list := []mounted{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{dir, dir, "", syscall.MS_BIND},
		{"proc", dir + "/proc", "proc", 0},
		{"sysfs", dir + "/sys", "sysfs", 0},
		{"tmpfs", dir + "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV},
		{"tmpfs", dir + "/dev", "tmpfs", syscall.MS_NOSUID},
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty", "net/tun"} {
		list = append(list, mounted{"/dev/" + device, dir + "/dev/" + device, "", syscall.MS_BIND})
	}
	for _, from := range slices.Concat(readOnly, writable) {
		list = append(list, mounted{from, dir + from, "", syscall.MS_BIND})
	}
	for _, from := range readOnly {
		list = append(list, mounted{from, dir + from, "", syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY})
	}
	for _, m := range list {
		if err := m.mount(); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	if err := pivot(dir); err != nil {
		return fmt.Errorf("change the root directory: %w", err)
	}
	return upLoopback()
}

// mount creates the mount point first, a file for a device.
func (m mounted) mount() error {
	if _, err := os.Stat(m.to); err != nil {
		parent := filepath.Dir(m.to)
		if !strings.Contains(m.to, "/dev/") {
			parent = m.to
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if parent != m.to {
			if err := os.WriteFile(m.to, nil, 0o644); err != nil {
				return err
			}
		}
	}
	return syscall.Mount(m.from, m.to, m.kind, m.flags, "")
}

// pivot unmounts the former root.
func pivot(dir string) error {
	if err := syscall.Chdir(dir); err != nil {
		return err
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return err
	}
	return syscall.Chdir("/")
}

// upLoopback does `ip link set lo up` by SIOCSIFFLAGS: see netdevice(7).
func upLoopback() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	request := struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte // the rest of struct ifreq
	}{flags: syscall.IFF_UP}
	copy(request.name[:], "lo")
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("set lo up: %w", errno)
	}
	return nil
}
