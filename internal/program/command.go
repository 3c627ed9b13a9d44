package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// A Command is a program that `cni-exec run` or `cni-exec enter` starts in a network namespace, or
// this binary for a part of its work in another process.
type Command struct {
	Args           []string // name first, which is looked up in PATH
	Self           bool     // run this binary instead, under that name
	Environ        []string
	Stdin          io.Reader // files are passed, anything else is copied
	Stdout, Stderr io.Writer
	Signals        <-chan os.Signal // passed on to the program
	Started        func()           // called while the program runs; nil: not called
}

// The exit codes of shells: for a program that cannot be run, for one that is missing, and the base for
// one that a signal ended.
const (
	exitNoExec   = 126
	exitNotFound = 127
	ExitSignal   = 128
)

// Run runs the program and returns its exit code. It starts the program on the calling thread,
// whose namespaces it gets; the caller keeps the thread locked, since the program is killed when
// the thread ends (prctl(2), PR_SET_PDEATHSIG).
//
// The exit code is the program's, 128 plus the number of the signal that ended it, or 126 or 127
// with an error of code 103 if it was not started. Signals are passed to the program and do not end
// this process.
func (c *Command) Run() (exit int, err error) {
	file, err := c.find()
	var state *os.ProcessState
	if err == nil {
		p := Program{
			File: file, Args: c.Args, Environ: c.Environ,
			Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
			Attr: unix.SysProcAttr{Pdeathsig: unix.SIGKILL}, Signals: c.Signals, Started: c.Started,
		}
		state, err = p.Run(context.Background())
	}
	if err != nil {
		return c.notStarted(err)
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return ExitSignal + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

// RunSelf is [Command.Run] for this binary: the first of Args names the applet.
func (c *Command) RunSelf(ctx context.Context) (exit int, err error) {
	p := Program{File: Self, Args: c.Args, Environ: c.Environ, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		Attr: unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}}
	state, err := p.Run(ctx)
	if err != nil {
		return c.notStarted(err)
	}
	if !state.Exited() {
		return exitNoExec, fmt.Errorf("%s: %s", c.Args[0], Describe(state))
	}
	return state.ExitCode(), nil
}

// Become replaces this process by the program, which gets the namespaces of the calling thread
// and the standard streams of this process. It returns only after an error, as Run does.
func (c *Command) Become() (exit int, err error) {
	file, err := c.find()
	if err == nil {
		err = &os.PathError{Op: OpStart, Path: file, Err: syscall.Exec(file, c.Args, c.Environ)}
	}
	return c.notStarted(err)
}

// Look returns the exit code and the error of Run for a missing program, without running one.
func (c *Command) Look() (exit int, err error) {
	if _, err := c.find(); err != nil {
		return c.notStarted(err)
	}
	return 0, nil
}

// notStarted returns the exit code for the error of a program that was not started.
func (c *Command) notStarted(err error) (exit int, _ error) {
	exit = exitNoExec
	if errors.Is(err, os.ErrNotExist) {
		exit = exitNotFound
	}
	if pathErr := new(os.PathError); !errors.As(err, &pathErr) { // else it names the file
		err = fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return exit, spec.Errorf(spec.CodePlugin, "%w", err)
}

// find returns the path of the program.
func (c *Command) find() (string, error) {
	if c.Self {
		return Self, nil
	}
	return c.lookPath(c.Args[0])
}

// lookPath finds a command as the shell does: a name with a slash is a path, any other name is
// looked up in the directories of PATH. It skips relative directories, since the program must not
// depend on the working directory. The error is os.ErrNotExist.
func (c *Command) lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		_, err := os.Stat(name)
		return name, err
	}
	var dirs string
	for _, v := range c.Environ {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			dirs = value // the last one counts
		}
	}
	for _, dir := range filepath.SplitList(dirs) {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil && filepath.IsAbs(path) && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", &spec.Error{Code: spec.CodePlugin, Msg: "no such command on PATH", Err: os.ErrNotExist}
}
