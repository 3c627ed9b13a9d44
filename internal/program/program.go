// Package program starts programs: plugins found on CNI_PATH, the commands of `cni-exec run` and `cni-exec enter`, and this
// binary itself for what needs a process of its own. Nothing else of the product does.
package program

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/interrupt"
)

// waitDelay bounds the reading of output from a program's children that keep its pipes open after
// its end.
const waitDelay = 500 * time.Millisecond

// OpStart is the operation of the [*os.PathError] of a program that could not be started.
const OpStart = "start"

// Self is a link to the running binary. It stays valid when the file is moved, replaced or deleted:
// a chain ends with the same plugins with which it began.
const Self = "/proc/self/exe"

// A Program is a file to execute, with its arguments and streams.
type Program struct {
	File          string   // path; not looked up
	Args, Environ []string // Args has the name first

	// The program inherits an *os.File; any other stream is connected by a pipe. None may be nil.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	Attr    unix.SysProcAttr
	Signals <-chan os.Signal // passed on to the program, except for the terminal's; nil: none
	Started func()           // called once it runs; nil: not called
}

// Run starts the program on the calling thread and returns its state when it has ended and all its
// output is written. When the context ends, it kills the process group that the program leads. Errors
// of the streams are ignored, since a program need not read its stdin.
//
// The error is an [*os.PathError] if the program was not started, otherwise of pipe2(2) or waitid(2).
func (p *Program) Run(ctx context.Context) (*os.ProcessState, error) {
	cmd := exec.CommandContext(ctx, p.File)
	cmd.Args, cmd.Env, cmd.Stdin, cmd.SysProcAttr = p.Args, p.Environ, p.Stdin, &p.Attr
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = waitDelay
	var s streams
	defer s.close()
	var err error
	if cmd.Stdout, err = s.to(p.Stdout); err != nil {
		return nil, err
	}
	if cmd.Stderr, err = s.to(p.Stderr); err != nil {
		return nil, err
	}
	defer interrupt.Begin()() // a signal ends the program before this process
	early := len(p.Signals)   // received before the program was started
	if err := cmd.Start(); err != nil {
		var file *os.PathError
		if errors.As(err, &file) {
			file.Op = OpStart // replaces Go's fork/exec
		}
		return nil, err
	}
	s.begin()
	stop := p.pass(cmd.Process, early)
	if p.Started != nil {
		p.Started()
	}
	err = cmd.Wait()
	stop()
	s.finish()
	var syscallErr *os.SyscallError
	if errors.As(err, &syscallErr) {
		return nil, err
	}
	return cmd.ProcessState, nil
}

// pass passes signals on to the program until stop is called. The first early ones were received before
// the program was started, so the terminal has not sent them to it.
func (p *Program) pass(to *os.Process, early int) (stop func()) {
	ended, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		for {
			select {
			case s := <-p.Signals:
				if early--; early >= 0 || !fromTerminal(s) {
					_ = to.Signal(s) // the error is os.ErrProcessDone after Wait
				}
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-idle }
}

// fromTerminal reports whether the terminal has sent a signal to the program as well: Ctrl-C and Ctrl-\
// go to the whole foreground process group, in which the program is with this process.
//
// Go does not report the sender of a signal. So a SIGINT or SIGQUIT to this process alone, while it is in
// the foreground, is mistaken for the terminal's; SIGTERM is always passed on.
func fromTerminal(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // no controlling terminal
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// Describe returns how a program ended: "exit status 1", "signal: killed"; empty for exit 0, and
// for nil, a program that was not started.
func Describe(s *os.ProcessState) string {
	if s == nil || s.Success() {
		return ""
	}
	return s.String()
}

// streams has the pipes of a program's output, in place of those of [exec.Cmd]: its goroutines may be
// stopped before they have read what is in the pipe, if this process is not scheduled for waitDelay
// after the program's end. The zero value is ready for use.
type streams struct {
	theirs, ours []*os.File
	drain        []func()       // copy from stdout and stderr
	drained      sync.WaitGroup // those that run
}

// to returns the stream for the program: w if it is a file, else a pipe that is copied to w. The caller
// closes the streams, even after an error.
func (s *streams) to(w io.Writer) (io.Writer, error) {
	if f, ok := w.(*os.File); ok {
		return f, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.theirs, s.ours = append(s.theirs, theirs), append(s.ours, ours)
	// The pipe is closed as soon as the writer fails: a program that prints without end
	// must not wait for a reader.
	s.drain = append(s.drain, func() { _, _ = io.Copy(w, ours); copyRest(w, ours); ours.Close() })
	return theirs, nil
}

// pipeSize is the capacity of a pipe in bytes, pipe(7).
const pipeSize = 64 << 10

// copyRest copies what is still in the pipe: io.Copy has not read it if this process was not scheduled
// until after the deadline.
func copyRest(to io.Writer, from *os.File) {
	from.SetDeadline(time.Time{})
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		b := make([]byte, pipeSize)
		if n, _ := unix.Read(int(fd), b); n > 0 { // does not wait: the descriptor is non-blocking
			to.Write(b[:n])
		}
		return true
	})
}

// begin starts to copy the output of a program that runs. It closes the program's ends of the pipes in
// this process, so that reading ends with the program.
func (s *streams) begin() {
	for _, f := range s.theirs {
		f.Close()
	}
	for _, drain := range s.drain {
		s.drained.Go(drain)
	}
}

// finish waits until all output of the program is written, for waitDelay at most: a daemon that it left
// may keep a pipe open.
func (s *streams) finish() {
	end := time.Now().Add(waitDelay)
	for _, f := range s.ours {
		f.SetDeadline(end)
	}
	s.drained.Wait()
}

// close closes all pipes that are open, such as those of a program that was not started.
func (s *streams) close() {
	for _, f := range append(s.theirs, s.ours...) {
		f.Close()
	}
}
