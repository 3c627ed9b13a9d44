// Command privileged runs a command with what the kernel tests need: as root
// as it is, else as root of new user, network and mount namespaces. The tests
// then must not skip for want of privilege (CNIBOX_KERNEL=require).
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the first argument of the second half, which runs in the namespaces.
const inside = "--inside"

// hint is the one line for those who may not.
const hint = `make test needs root, or a kernel that allows user namespaces: try "sudo make test", or "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" where AppArmor forbids them; "make quick" runs the tests that need neither`

func main() {
	args := os.Args[1:]
	if len(args) > 1 && args[0] == inside {
		fail(settle())
		fail(command(args[1:]).Run())
		return
	}
	if len(args) == 0 {
		fail(errors.New("usage: privileged COMMAND [ARG …]"))
	}
	if os.Geteuid() == 0 {
		fail(command(args).Run())
		return
	}
	cmd := command(append([]string{"/proc/self/exe", inside}, args...))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	fail(cmd.Run())
}

// command prepares a command that has our streams and must not skip kernel tests. It finds ip, nft
// and tc, which are not on the PATH of Debian's ordinary users.
func command(args []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CNIBOX_KERNEL=require", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// settle gives the tests a /run of their own, since the machine's is not
// theirs, and keeps their mounts to themselves.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""))
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
