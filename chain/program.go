package chain

import (
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
)

// waitDelay is for what a program's own children print while they keep its pipes
// open after its end.
const waitDelay = 500 * time.Millisecond

// OpStart is the operation of the [*os.PathError] of a program that could not be started.
const OpStart = "fork/exec"

// A program is a plugin or a command that is to be started and waited for.
// It stands in for os/exec, which with os.Process below it is 1 % of the binary.
type program struct {
	file          string   // path; not looked up
	args, environ []string // args has the name first

	// An *os.File is handed to the program; anything else is at the other end of
	// a pipe. None may be nil; stdout and stderr may be the same if it is a file.
	stdin          io.Reader
	stdout, stderr io.Writer

	attr    unix.SysProcAttr
	cancel  <-chan struct{}  // when closed, the group that the program leads is killed; nil: never
	signals <-chan os.Signal // passed on to the program, but for the terminal's; nil: none
}

// run starts the program on the calling thread and returns how it ended, after
// all that it printed was written. What cannot be read or written is dropped, since a
// program need not read its stdin.
//
// Errors are [*os.PathError] of a program that was not started, else of pipe2(2),
// waitid(2) or wait4(2).
func (p *program) run() (unix.WaitStatus, error) {
	var s streams
	if err := s.connect(p); err != nil {
		s.close()
		return 0, err
	}
	pid, err := syscall.ForkExec(p.file, p.args, &syscall.ProcAttr{Env: p.environ, Files: s.fds, Sys: &p.attr})
	if err != nil {
		s.close()
		return 0, &os.PathError{Op: OpStart, Path: p.file, Err: err}
	}
	early := len(p.signals)
	s.begin()
	status, err := p.attend(pid, early)
	s.finish()
	return status, err
}

// attend waits for the end of the program, and meanwhile kills it when it is
// cancelled and passes signals on. The first ones, early, came before there was a program.
//
// The program is reaped only when nobody can send a signal any more: until then its
// number is no other process's.
func (p *program) attend(pid, early int) (status unix.WaitStatus, err error) {
	ended, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		for cancel := p.cancel; ; {
			select {
			case <-cancel:
				unix.Kill(-pid, unix.SIGKILL)
				cancel = nil
			case s := <-p.signals:
				if early--; early >= 0 || !fromTerminal(s) {
					unix.Kill(pid, s.(unix.Signal)) // all are, on Linux
				}
			case <-ended:
				return
			}
		}
	}()
	err = unix.EINTR
	for err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	close(ended)
	<-idle
	if err != nil {
		return 0, os.NewSyscallError("waitid", err)
	}
	_, err = unix.Wait4(pid, &status, 0, nil) // no EINTR: it does not block
	return status, os.NewSyscallError("wait4", err)
}

// fromTerminal reports whether the kernel has sent a signal to the program as well: Ctrl-C
// and Ctrl-\ go to all of the terminal's foreground group, which it shares with us.
//
// Go does not tell who sent a signal. So one that somebody sends to us alone while we are
// in the foreground is taken for the terminal's: SIGTERM is for that.
func fromTerminal(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	fd, err := disk.Open("/dev/tty", unix.O_RDONLY, 0)
	if err != nil {
		return false // there is none
	}
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	unix.Close(fd)
	return err == nil && group == syscall.Getpgrp()
}

// describe is the status as people know it from Go: "exit status 1",
// "signal: killed"; empty: exit 0.
func describe(status unix.WaitStatus) string {
	switch {
	case status.CoreDump():
		return "signal: " + status.Signal().String() + " (core dumped)"
	case status.Signaled():
		return "signal: " + status.Signal().String()
	case status.ExitStatus() != 0:
		return "exit status " + strconv.Itoa(status.ExitStatus())
	}
	return ""
}

// streams are the standard streams of a program.
// The zero value is ready for connect.
type streams struct {
	fds          []uintptr // the program's 0, 1 and 2
	theirs, ours []*os.File
	feed         func()         // copies to stdin, on a goroutine of its own; nil: nothing to copy
	drain        []func()       // copy from stdout and stderr
	drained      sync.WaitGroup // those that run
}

// connect makes the pipes that the program needs.
// After an error the caller closes what there is.
func (s *streams) connect(p *program) error {
	if f, ok := p.stdin.(*os.File); ok {
		s.fds = append(s.fds, f.Fd())
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.pipe(r, w)
		s.feed = func() { pump(w, p.stdin); w.Close() }
	}
	for _, to := range []io.Writer{p.stdout, p.stderr} {
		if f, ok := to.(*os.File); ok {
			s.fds = append(s.fds, f.Fd())
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.pipe(w, r)
		// Closed at once when the writer refuses: a program that prints without end
		// shall not wait for a reader.
		s.drain = append(s.drain, func() { pump(to, r); sweep(to, r); r.Close() })
	}
	return nil
}

// pump is io.Copy without the ways of files to spare the copying, which are 40 KB of the binary.
func pump(to io.Writer, from io.Reader) {
	b := make([]byte, 8<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pipeSize is what a pipe holds, pipe(7).
const pipeSize = 64 << 10

// sweep copies what is in the pipe already. When this process stood still while the
// deadline passed, pump has not seen the last of what the program printed.
func sweep(to io.Writer, from *os.File) {
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

// pipe keeps the ends of one. Theirs is a blocking one from now on, as programs
// expect ([os.File.Fd]); ours is not, so it can have a deadline.
func (s *streams) pipe(theirs, ours *os.File) {
	s.fds = append(s.fds, theirs.Fd())
	s.theirs, s.ours = append(s.theirs, theirs), append(s.ours, ours)
}

// begin copies from and to a program that runs.
// Its ends of the pipes are closed here, so that reading ends when it ends.
func (s *streams) begin() {
	for _, f := range s.theirs {
		f.Close()
	}
	if s.feed != nil {
		go s.feed()
	}
	for _, copy := range s.drain {
		s.drained.Go(copy)
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

// close is for a program that was not started.
func (s *streams) close() {
	for _, f := range append(s.theirs, s.ours...) {
		f.Close()
	}
}
