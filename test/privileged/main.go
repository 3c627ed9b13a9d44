// Command privileged runs a command with what the kernel tests need: as root in a mount
// namespace of its own, else as root of new user, network and mount namespaces. The tests
// then must not skip for want of privilege (CNIBOX_KERNEL=require). Their temporary directories
// are in memory: on a disk half of the processor time of the kernel is that of the file system.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the first argument of the second half, which runs in the namespaces.
const inside = "--inside"

// memory is where the temporary directories are: a file system of the mount namespace.
const memory = "/dev/shm"

// shared are the directories below /run in which plugins, cni-exec and ip(8) keep what has the same name in
// tests that run beside one another.
var shared = []string{"/run/cni", "/run/cnibox", "/run/netns"}

// hint is the one line for those who may not.
const hint = `make test needs root, or a kernel that allows user namespaces: try "sudo make test", or "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" where AppArmor forbids them; "make quick" runs the tests that need neither`

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		fail(errors.New("usage: privileged COMMAND [ARG …]"))
	}
	runtime.LockOSThread() // of the namespaces, from which the command is started
	switch {
	case args[0] == inside:
		fail(settle())
		fail(tmpfs("/run", "")) // the machine's is not theirs
		fail(become(args[1:]))
	case os.Geteuid() == 0:
		if unix.Unshare(unix.CLONE_NEWNS) == nil { // which some containers do not allow
			fail(settle())
			for _, dir := range shared {
				fail(os.MkdirAll(dir, 0o755))
				fail(tmpfs(dir, "mode=0755"))
			}
		}
		fail(become(args))
	}
	cmd := exec.Command("/proc/self/exe", append([]string{inside}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
	fail(cmd.Run())
	os.Exit(0)
}

// become runs the command in the place of this process. It must not skip kernel tests, and finds ip, nft
// and tc, which are not on the PATH of Debian's ordinary users.
func become(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	env := append(os.Environ(), "CNIBOX_KERNEL=require", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return os.NewSyscallError("execve", unix.Exec(path, args, env))
}

// settle keeps the tests' mounts to themselves, and gives them temporary directories in memory where that can be had.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if tmpfs(memory, "mode=1777") == nil {
		os.Setenv("TMPDIR", memory)
		os.Setenv("GOTMPDIR", memory) // which package testing prefers
	}
	return nil
}

func tmpfs(dir, options string) error {
	return os.NewSyscallError("mount", unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options))
}

// fail ends with the command's own exit code, or prints what is missing.
func fail(err error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EINVAL):
		// ENOSPC: user.max_user_namespaces is 0. EINVAL: the kernel has none.
		fmt.Fprintf(os.Stderr, "%s (%v)\n", hint, err)
	default:
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}
