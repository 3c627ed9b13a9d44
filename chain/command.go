package chain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Command is a program of the user's own, for which a network was set up.
// It is here since no other room may start programs.
type Command struct {
	Args           []string // name first; it is looked up on PATH
	Environ        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Signals        <-chan os.Signal // passed on to the program
}

// The exit codes that shells have for a program that cannot be run, and the
// base for one that ended by a signal.
const (
	exitNoExec   = 126
	exitNotFound = 127
	exitSignal   = 128
)

// Run runs the program and returns its exit code. The program is started on the
// calling thread and gets its namespaces; the caller keeps the thread locked,
// since the program is killed when the thread ends (prctl(2), PR_SET_PDEATHSIG).
//
// The exit code is the program's, 128 and the number of a signal that ended it, or 126
// and 127 with an error if it was not started. The signals that come meanwhile go to
// the program alone; ending is its own decision.
func (c *Command) Run() (exit int, err error) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Environ, c.Stdin, c.Stdout, c.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		exit = exitNoExec
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			exit = exitNotFound
		}
		return exit, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	done := make(chan struct{})
	// Ends with the program: done is closed behind Wait.
	go func() {
		for {
			select {
			case s := <-c.Signals:
				cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(done)
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return 1, fmt.Errorf("wait for %s: %w", c.Args[0], err)
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignal + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
