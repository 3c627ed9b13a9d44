// Package sandbox gives the tools that try cnibox out a host of their own: a
// process in new network and mount namespaces, in which /run and /var/lib/cni
// are empty, so that links, rules, leases and caches of the machine are neither
// seen nor touched. All of it is gone when the process ends, however it ends.
//
// It is not a part of the product. Tests may use it.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/rtnl"
)

// ErrPrivilege is returned by [Start] where the kernel allows neither network
// namespaces nor the user namespace that would give the right to make them.
var ErrPrivilege = errors.New("needs network namespaces: run it as root, " +
	"or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)")

// marker is the variable by which the second process knows that it is the second, and
// what namespaces the first had: it must not have the same.
const marker = "CNIBOX_SANDBOX"

// The main goroutine keeps the first thread: netns.NS.Do throws threads away,
// the kernel kills the child of [Start] together with the thread that made it,
// and the first thread can be used for neither.
func init() { runtime.LockOSThread() }

// Inside reports whether this is the process that [Start] made.
func Inside() bool { return os.Getenv(marker) != "" }

// Start runs this program again, with the same arguments and env besides its
// own environment, in namespaces of its own, and returns its exit code. Without
// root it makes a user namespace, too. The new process must call [Setup] first
// of all. An interrupt from the keyboard reaches both; this one waits.
func Start(env ...string) (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	where, err := namespaces()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(append(os.Environ(), env...), marker+"="+where)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	defer signal.Stop(interrupts)
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
			return 0, fmt.Errorf("%w (%w)", ErrPrivilege, err)
		}
		return 0, err
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// attributes of the second process: it dies with this one.
// The user namespace maps the one user to root, which is all an unprivileged process may.
func attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// Setup empties /run and /var/lib/cni and sets lo up. It refuses to in the
// namespaces that the process was started from.
// A second call in one process fails, as the marker is gone.
func Setup() error {
	before := strings.Fields(os.Getenv(marker))
	os.Unsetenv(marker)
	where, err := namespaces()
	if err != nil {
		return err
	}
	now := strings.Fields(where)
	if len(before) != len(now) || before[0] == now[0] || before[1] == now[1] {
		return fmt.Errorf("sandbox: %s is set, but the namespaces are not new", marker)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := empty("/run"); err != nil {
		return err
	}
	if err := emptyState(); err != nil {
		return err
	}
	if err := os.MkdirAll(pins, 0o755); err != nil {
		return err
	}
	return loUp(netns.Host())
}

// namespaces names those of this thread which the sandbox must not share.
func namespaces() (string, error) {
	mnt, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return "", err
	}
	net, err := os.Readlink("/proc/thread-self/ns/net")
	return mnt + " " + net, err
}

// loUp sets the loopback link of a namespace up.
func loUp(ns *netns.NS) error {
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	lo, err := c.Link("lo")
	if err != nil {
		return err
	}
	up := true
	return c.SetLink(lo.Index, rtnl.LinkChange{Up: &up})
}
