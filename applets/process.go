package applets

import (
	"context"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/internal/interrupt"
)

// Main runs the applet that this process is called by, as a whole process: arguments, environment and
// streams, signals, and the threads that it needs. It returns the exit code. Package main is this and
// nothing more; test binaries that answer to the names of the applets call it too. With forceExec built-in plugins are started as programs.
func Main(forceExec bool) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	interrupt.Cancels(cancel)
	var args []string
	name := ""
	if len(os.Args) > 0 { // execve allows an empty argv
		name, args = os.Args[0], os.Args[1:]
	}
	verb := os.Getenv("CNI_COMMAND")
	if len(args) > 0 && !namesPlugin(args) { // they are for tools, which do not read the variable
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
		Threads:   reserveThreads,
		ForceExec: forceExec,
	})
}

// namesPlugin reports whether the only argument is the name of a plugin, as in `cnibox bridge`.
func namesPlugin(args []string) bool {
	a, ok := Lookup(args[0])
	return ok && a.Main == nil && len(args) == 1
}

// A descriptor is a standard stream without what [os.File] does at a pipe that has no reader: it ends
// the process by SIGPIPE, and a plugin must finish its verb, or undo it.
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

// stackSize is what most verbs need of the stack of main, in bytes.
const stackSize = 24 << 10

// growStack makes the stack of the calling goroutine large while there is little on it: Go
// doubles a stack that is full, and looks up each frame on it for that.
//
//go:noinline
func growStack(use bool) byte {
	if !use { // the stack has grown by now, and nothing of the frame was touched
		return 0
	}
	var frame [stackSize]byte
	return frame[len(os.Args)]
}

// spareThreads are for what blocks in the kernel beside main.
const spareThreads = 2

// reserveThreads makes all the threads that an ADD may need, and returns when they are there
// and idle. The runtime ends the process where it cannot make a thread (EAGAIN, by the limit
// of a control group or of the user), so that has to be before the first change. It needs
// few where one goroutine runs at a time, which is also faster: an ADD does one thing after
// another. The threads of [signal.Notify] are among them.
func reserveThreads() {
	runtime.GOMAXPROCS(1)
	<-interrupt.Expect()
	var there, gone sync.WaitGroup
	idle := make(chan struct{})
	for range spareThreads {
		there.Add(1)
		gone.Go(func() {
			runtime.LockOSThread()
			there.Done()
			<-idle
			runtime.UnlockOSThread()
		})
	}
	there.Wait()
	close(idle)
	gone.Wait()
}
