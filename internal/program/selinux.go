package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// A labeller re-executes this binary under an SELinux label: the kernel labels the queues of a tap
// device with the label of the process that creates it, and a single thread can only have a label that
// is bounded by the process's.
type labeller struct {
	mount string // of selinuxfs, which is missing on a kernel without SELinux
	magic int64  // of the file system there, as in statfs(2)
	attr  string // the label of the next execve(2) of the thread: proc_pid_attr(5)
}

// seLinux returns the paths in the kernel's file systems. The attribute alone does not prove that there
// is SELinux: other security modules have a file with that name.
func seLinux() labeller {
	return labeller{"/sys/fs/selinux", unix.SELINUX_MAGIC, "/proc/thread-self/attr/exec"}
}

// SELinux returns an error if this kernel has no SELinux.
func SELinux() error { return seLinux().available() }

// RunLabelled runs this binary under an SELinux label, in the namespaces of the calling thread, which
// must be locked. The first argument is the name of the applet. After a failure the error has its stderr.
func RunLabelled(ctx context.Context, label string, args ...string) error {
	return seLinux().run(ctx, Self, label, args)
}

// available returns an error if selinuxfs is not mounted.
func (l labeller) available() error {
	var st unix.Statfs_t
	if err := unix.Statfs(l.mount, &st); err != nil || uint32(st.Type) != uint32(l.magic) {
		return fmt.Errorf("SELinux is disabled: no selinuxfs at %s", l.mount)
	}
	return nil
}

// run is RunLabelled for any file. The label of the thread is reset, as the thread may start
// other programs later.
func (l labeller) run(ctx context.Context, file, label string, args []string) error {
	if err := l.available(); err != nil {
		return err
	}
	if err := l.set(label); err != nil {
		return fmt.Errorf("SELinux label %q: %w", label, err)
	}
	stderr := new(Tail)
	p := Program{
		File: file, Args: args, Stdin: &bytes.Buffer{}, Stdout: io.Discard, Stderr: stderr,
		Attr: unix.SysProcAttr{Setpgid: true},
	}
	state, err := p.Run(ctx)
	err = errors.Join(err, l.set("\n")) // resets it; a write of no bytes does not reach the kernel
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s under SELinux label %q: %s: %s", args[0], label, Describe(state), strings.TrimSpace(string(stderr.Bytes())))
	}
	return err
}

// set writes the label, which the kernel checks against its policy.
func (l labeller) set(label string) error {
	fd, err := unix.Open(l.attr, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(label))
	return err
}
