// Package sandbox runs the tools that test cnibox on a host of their own: a process in new network
// and mount namespaces, in which /run and /var/lib/cni are empty, so that it neither sees nor
// changes links, rules, leases and caches of the machine. All of it is gone when the process ends,
// however it ends.
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

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// ErrPrivilege is returned by [Start] if the kernel allows neither new network namespaces nor a
// user namespace in which to make them.
var ErrPrivilege = errors.New("needs network namespaces: run it as root, " +
	"or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)")

// marker is set for the second process, to the namespaces of the first: it must not have the same.
const marker = "CNIBOX_SANDBOX"

// The main goroutine stays on the first thread, which cannot be discarded: netns.NS.Do discards
// threads, and the kernel kills the child of [Start] together with the thread that started it.
func init() { runtime.LockOSThread() }

// Inside reports whether this is the process that [Start] made.
func Inside() bool { return os.Getenv(marker) != "" }

// Start runs this program again in new namespaces, with the same arguments and env added to the
// environment, and returns its exit code. Without root it makes a user namespace, too. The new
// process must call [Setup] first. Ctrl-C reaches both processes; this one waits.
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

// attributes are those of the second process: it dies with this one. The user namespace maps the
// user to root, which is all that an unprivileged process may map.
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

// Setup empties /run and /var/lib/cni and sets lo up. It returns an error in the namespaces that
// the process was started from, and at a second call, since the marker is gone.
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
	if err := mountEmpty("/run"); err != nil {
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

// namespaces names the namespaces of this thread that the sandbox must not share.
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
