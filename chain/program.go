package chain

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

	"cnibox/internal/interrupt"
)

// This file is the one place that starts processes. It does so for three callers: exec.go starts
// plugins found on CNI_PATH, command.go the commands of `cni-exec run` and `cni-exec enter`, and
// selinux.go this binary itself under an SELinux label.

// waitDelay bounds the reading of output from a program's children that keep its pipes open after
// its end.
const waitDelay = 500 * time.Millisecond

// OpStart is the operation of the [*os.PathError] of a program that could not be started.
const OpStart = "start"

// A program is an [exec.Cmd] that is started and waited for, and whose output is read to its
// end.
type program struct {
	file          string   // path; not looked up
	args, environ []string // args has the name first

	// An *os.File is handed to the program; anything else is at the other end of
	// a pipe. None may be nil.
	stdin          io.Reader
	stdout, stderr io.Writer

	attr    unix.SysProcAttr
	signals <-chan os.Signal // passed on to the program, but for the terminal's; nil: none
	started func()           // called once it runs; nil: not called
}

// become replaces this process by the program, which gets the namespaces of the calling thread,
// standard streams of this process, and the rest of the fields but attr and signals. It returns
// only after an error, an [*os.PathError].
func (p *program) become() error {
	return &os.PathError{Op: OpStart, Path: p.file, Err: syscall.Exec(p.file, p.args, p.environ)}
}

// run starts the program on the calling thread and returns how it ended, after
// all that it printed was written. The group that the program leads is killed when the
// context ends. What cannot be read or written is dropped, since a program need not read
// its stdin.
//
// Errors are [*os.PathError] of a program that was not started, else of pipe2(2) or
// waitid(2).
func (p *program) run(ctx context.Context) (*os.ProcessState, error) {
	cmd := exec.CommandContext(ctx, p.file)
	cmd.Args, cmd.Env, cmd.Stdin, cmd.SysProcAttr = p.args, p.environ, p.stdin, &p.attr
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = waitDelay
	var s streams
	defer s.close()
	var err error
	if cmd.Stdout, err = s.to(p.stdout); err != nil {
		return nil, err
	}
	if cmd.Stderr, err = s.to(p.stderr); err != nil {
		return nil, err
	}
	defer interrupt.Begin()() // a signal ends the program first
	early := len(p.signals)   // before there was a program
	if err := cmd.Start(); err != nil {
		var file *os.PathError
		if errors.As(err, &file) {
			file.Op = OpStart // in place of Go's fork/exec
		}
		return nil, err
	}
	s.begin()
	stop := p.pass(cmd.Process, early)
	if p.started != nil {
		p.started()
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

// pass sends on the signals that come until the returned function is called.
func (p *program) pass(to *os.Process, early int) (stop func()) {
	ended, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		for {
			select {
			case s := <-p.signals:
				if early--; early >= 0 || !fromTerminal(s) {
					_ = to.Signal(s) // os.ErrProcessDone once it was waited for
				}
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-idle }
}

// fromTerminal reports whether the kernel has sent a signal to the program as well: Ctrl-C
// and Ctrl-\ go to all of the terminal's foreground group, which it shares with us.
//
// Go does not say who sent a signal. So one that is sent to us alone while we are in the
// foreground is taken for the terminal's: SIGTERM is for that.
func fromTerminal(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // there is none
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// describe returns how a program ended: "exit status 1", "signal: killed"; empty for exit 0, and
// for nil, a program that was not started.
func describe(s *os.ProcessState) string {
	if s == nil || s.Success() {
		return ""
	}
	return s.String()
}

// streams are the pipes of a program's output. With the goroutines of [exec.Cmd] an answer
// was lost when this process was not scheduled for waitDelay after the program's end: they
// may be stopped before they have read what is in the pipe.
// The zero value is ready for use.
type streams struct {
	theirs, ours []*os.File
	drain        []func()       // copy from stdout and stderr
	drained      sync.WaitGroup // those that run
}

// to returns what the program is to write to: a file as it is, else a pipe to the writer.
// The caller closes the streams also after an error.
func (s *streams) to(w io.Writer) (io.Writer, error) {
	if f, ok := w.(*os.File); ok {
		return f, nil
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.theirs, s.ours = append(s.theirs, theirs), append(s.ours, ours)
	// Closed at once when the writer fails: a program that prints without end
	// must not wait for a reader.
	s.drain = append(s.drain, func() { _, _ = io.Copy(w, ours); copyRest(w, ours); ours.Close() })
	return theirs, nil
}

// pipeSize is what a pipe holds, pipe(7).
const pipeSize = 64 << 10

// copyRest copies what is in the pipe already. If this process was not scheduled until after
// the deadline, io.Copy has not read the last of what the program printed.
func copyRest(to io.Writer, from *os.File) {
	from.SetDeadline(time.Time{})
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		b := make([]byte, pipeSize)
		if n, _ := unix.Read(int(fd), b); n > 0 { // no waiting: the descriptor does not block
			to.Write(b[:n])
		}
		return true
	})
}

// begin copies from a program that runs. Its ends of the pipes are closed here, so that
// reading ends when it ends.
func (s *streams) begin() {
	for _, f := range s.theirs {
		f.Close()
	}
	for _, drain := range s.drain {
		s.drained.Go(drain)
	}
}

// finish returns when all was written that the program printed, or waitDelay
// after its end: a daemon that it left may hold a pipe for ever.
func (s *streams) finish() {
	end := time.Now().Add(waitDelay)
	for _, f := range s.ours {
		f.SetDeadline(end)
	}
	s.drained.Wait()
}

// close is for all that is open, as of a program that was not started.
func (s *streams) close() {
	for _, f := range append(s.theirs, s.ours...) {
		f.Close()
	}
}
