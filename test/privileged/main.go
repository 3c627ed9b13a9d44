// Command privileged runs a command with the privileges of the kernel tests: as root in new network and
// mount namespaces, else as root of a new user namespace as well. It sets CNIBOX_KERNEL=require,
// so that tests do not skip. Their temporary directories are in tmpfs: a file system on a disk
// takes half of the kernel's processor time.
//
// What the machine has of CNI is hidden, so that tests give the same result everywhere: its links and
// rules, /run, plugins, configurations, leases and caches.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/sandbox"
)

// inside is the first argument of the second process, which runs in the namespaces. With user in its place the
// command runs in a new user namespace alone: what it starts by this program may then look into each other's
// namespaces, as processes of root can.
const (
	inside = "--inside"
	user   = "--user"
)

// memory is the directory for temporary directories: a tmpfs of the mount namespace.
const memory = "/dev/shm"

// hint is printed if the kernel does not allow it.
const hint = `make test needs root, or a kernel that allows user namespaces: try "sudo make test", or "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" where AppArmor forbids them; "make quick" runs the tests that need neither`

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		fail(errors.New("usage: privileged COMMAND [ARG …]"))
	}
	runtime.LockOSThread() // in these namespaces; the command is started from this thread
	switch {
	case args[0] == inside:
		fail(setupMounts())
		fail(execute(args[1:]))
	case os.Geteuid() == 0:
		if unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_NEWNET) == nil { // some containers forbid it
			fail(setupMounts())
		}
		fail(execute(args))
	case args[0] == user:
		signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP) // the command ends, and then this
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = asRoot(unix.CLONE_NEWNET) // one that those below may enter
		fail(cmd.Run())
		os.Exit(0)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{inside}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = asRoot(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	fail(cmd.Run())
	os.Exit(0)
}

// asRoot makes a process root of a new user namespace, and of other new ones.
func asRoot(flags uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
}

// execute executes the command. It sets CNIBOX_KERNEL=require, and adds the directories of ip, nft
// and tc, which are not on the PATH of Debian's ordinary users. No signal is ignored, as those of the keyboard
// are when a shell starts make in the background: tests send them.
func execute(args []string) error {
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT, unix.SIGHUP) // execve resets what is handled
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	env := append(os.Environ(), "CNIBOX_KERNEL=require", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return os.NewSyscallError("execve", unix.Exec(path, args, env))
}

// setupMounts makes mounts private, mounts a tmpfs for temporary directories where possible, and hides what
// the machine has.
func setupMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if tmpfs(memory, "mode=1777") == nil {
		os.Setenv("TMPDIR", memory)
		os.Setenv("GOTMPDIR", memory) // preferred by package testing
		// The mount of a network namespace that a test deletes goes from copies of the mount namespace as well.
		if err := unix.Mount("", memory, "", unix.MS_SHARED, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
	}
	return sandbox.Hide()
}

func tmpfs(dir, options string) error {
	return os.NewSyscallError("mount", unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options))
}

// fail exits with the command's exit code, or prints what is missing.
func fail(err error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EINVAL):
		// ENOSPC: user.max_user_namespaces is 0. EINVAL: the kernel has no user namespaces.
		fmt.Fprintf(os.Stderr, "%s (%v)\n", hint, err)
	default:
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}
