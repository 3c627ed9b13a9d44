package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process is a daemon with a log. A nil pointer is one that was never started.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // set before done is closed
}

// start starts a daemon in its own process group. It appends to the log of an earlier daemon with
// this name.
func (c *cluster) start(name string, argv ...string) (*process, error) {
	log, err := os.OpenFile(logFile(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	go func() {
		p.err = p.cmd.Wait()
		// If nsenter is killed first, its child is reparented to this process, the first of its PID
		// namespace. A node's PID namespace ends when all its processes have been waited for.
		for err := error(nil); err == nil || errors.Is(err, unix.EINTR); {
			_, err = unix.Wait4(-p.cmd.Process.Pid, nil, 0, nil)
		}
		close(p.done)
	}()
	return p, nil
}

func logFile(name string) string { return filepath.Join(work, name+".log") }

// signal signals the process group and waits until the daemon has ended.
func (p *process) signal(s unix.Signal) error {
	if p == nil {
		return nil
	}
	if err := unix.Kill(-p.cmd.Process.Pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return eventually(func() error {
		select {
		case <-p.done:
			return nil
		default:
			return fmt.Errorf("%s runs on after %v", p.name, s)
		}
	})
}

func (p *process) kill() { p.signal(unix.SIGKILL) } // it cannot be refused

// ended returns an error if the daemon has ended.
func (p *process) ended() error {
	select {
	case <-p.done:
		return errors.Join(fmt.Errorf("%s has ended", p.name), p.err)
	default:
		return nil
	}
}
