package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// home is where the checkout is in the Debian.
const home = "root/cnibox"

// passed are the settings of go that the Debian shares with this machine.
var passed = []string{"GOROOT", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOSUMDB", "GOFLAGS"}

// goEnv asks go for its settings.
func goEnv() (map[string]string, error) {
	out, err := exec.Command("go", append([]string{"env", "-json"}, passed...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := map[string]string{}
	return env, json.Unmarshal(out, &env)
}

// environ is what a login of root has, with the settings of go.
func environ(env map[string]string) []string {
	list := []string{
		"HOME=/root", "USER=root", "TERM=dumb", "LC_ALL=C.UTF-8", "GOTOOLCHAIN=local",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + env["GOROOT"] + "/bin",
	}
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// copyCheckout copies all but what was built and git's own files.
func copyCheckout(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	pack := command("tar", "-C", from, "--exclude=./.git", "--exclude=./bin", "-cf", "-", ".")
	unpack := command("tar", "-C", to, "--no-same-owner", "-xf", "-")
	pack.Stdout = nil
	var err error
	if unpack.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	if err := unpack.Start(); err != nil {
		return err
	}
	err = pack.Run()
	if e := unpack.Wait(); err == nil {
		err = e
	}
	return err
}

// A mounted thing is one that a running Debian has, or that is shared with it.
type mounted struct {
	from, to, kind string
	flags          uintptr
}

// enter makes dir the root of this process, with what a running system has mounted and the
// directories of go, and sets up lo. Go's build cache alone may be written to.
func enter(dir, goRoot, modules, cache string) error {
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
	for _, from := range []string{goRoot, modules, cache} {
		list = append(list, mounted{from, dir + from, "", syscall.MS_BIND})
	}
	for _, from := range []string{goRoot, modules} {
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

// mount makes the mount point first, a file for a device.
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

// pivot leaves nothing of the former root.
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

// upLoopback does what `ip link set lo up` does, by SIOCSIFFLAGS: see netdevice(7).
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
