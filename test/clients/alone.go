package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/sandbox"
)

// cgroupVar passes the name of the trial's control group to the third process.
const cgroupVar = "CNIBOX_CLIENTS_CGROUP"

// cgroupPrefix is followed by the ID of the second process.
const cgroupPrefix = "cnibox-clients-"

// runIsolated runs the third process in new PID and mount namespaces, and then deletes its control
// groups.
func runIsolated() (code int, err error) {
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	sandbox.RemoveOldCgroups(cgroupPrefix)
	group := fmt.Sprint(cgroupPrefix, os.Getpid())
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), cgroupVar+"=/"+group)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	err = cmd.Run()
	sandbox.RemoveCgroup(group)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// hidden are directories of the machine, by parent, that clients use without a setting for another
// path.
var hidden = map[string][]string{"/etc": {"cni", "containers"}, "/opt": {"cni"}}

// hide replaces each by an empty directory: an overlay over the parent, since the directory may not
// exist, and an empty file system on it.
func hide() error {
	for above, names := range hidden {
		layer := filepath.Join(work, "layer"+above)
		upper, aside := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
		for _, d := range []string{upper, aside} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", above, upper, aside)
		if err := unix.Mount("overlay", above, "overlay", 0, options); err != nil {
			return fmt.Errorf("layer over %s: %w", above, err)
		}
		for _, name := range names {
			dir := filepath.Join(above, name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("cnibox", dir, "tmpfs", 0, "mode=0755"); err != nil {
				return fmt.Errorf("hide %s: %w", dir, err)
			}
		}
	}
	return nil
}

// ownProc mounts /proc of this PID namespace: /proc/PID/ns/net is looked up there.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}
