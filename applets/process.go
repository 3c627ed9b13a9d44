package applets

import (
	"context"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/session"
)

// Main runs the applet under whose name this process was called, as a whole process: arguments,
// environment, streams, signals and threads. It returns the exit code. Package main only calls it;
// so do test binaries that act as the applets. With forceExec built-in plugins run as programs.
func Main(forceExec bool) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	interrupt.Cancels(cancel)
	name, args := Called(os.Args)
	verb := os.Getenv("CNI_COMMAND")
	if len(args) > 0 && !namesPlugin(args) { // arguments are for tools, which ignore CNI_COMMAND
		verb = ""
	}
	growStack(false)
	var stdout, stderr io.Writer = os.Stdout, os.Stderr
	if verb != "" {
		stdout, stderr = descriptor(syscall.Stdout), descriptor(syscall.Stderr)
	}
	return Run(ctx, name, applet.Process{
		Args:      args,
		Getenv:    os.Getenv,
		Environ:   os.Environ(),
		Stdin:     os.Stdin,
		Stdout:    stdout,
		Stderr:    stderr,
		ForceExec: forceExec,
		Session:   session.New(),
	})
}

// Called returns the name of the applet and its arguments. The kernel calls the program of a #! line
// with the path of the file, which has the name, before the arguments.
func Called(argv []string) (name string, args []string) {
	if len(argv) == 0 { // execve allows an empty argv
		return "", nil
	}
	if a, ok := Lookup(path.Base(argv[0])); len(argv) > 1 && (!ok || a.Name == "cnibox" && strings.Contains(argv[1], "/")) {
		if _, ok := Lookup(path.Base(argv[1])); ok {
			return argv[1], argv[2:]
		}
	}
	return argv[0], argv[1:]
}

// namesPlugin reports whether the only argument is the name of a plugin, as in `cnibox bridge`.
func namesPlugin(args []string) bool {
	a, ok := Lookup(args[0])
	return ok && a.Main == nil && len(args) == 1
}

// A descriptor is a standard stream that returns EPIPE for a pipe without a reader. [os.File] ends
// the process by SIGPIPE there, but a plugin must finish its verb, or undo it.
type descriptor int

// Write writes all of b, or returns why it cannot.
func (d descriptor) Write(b []byte) (n int, err error) {
	for n < len(b) {
		m, err := unix.Write(int(d), b[n:])
		switch err {
		case nil:
			n += m
		case unix.EINTR:
		case unix.EAGAIN: // another process has made the pipe non-blocking
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d), Events: unix.POLLOUT}}, -1)
		default:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// stackSize is the stack that most verbs need in main, in bytes.
const stackSize = 24 << 10

// growStack grows the stack of the calling goroutine while it holds few frames: Go doubles a full
// stack, and looks up each frame for that. Of 120 interleaved ADDs of bridge with host-local the median took 10.3 ms
// of processor time and 507 page faults, without this 10.7 ms and 513; of CHECK it was 7.4 ms and 444, 7.6 ms and 464.
//
//go:noinline
func growStack(use bool) byte {
	if !use { // the stack has grown by now, and the frame was not written to
		return 0
	}
	var frame [stackSize]byte
	return frame[len(os.Args)]
}
