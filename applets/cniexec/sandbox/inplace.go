package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/spec"
)

// With --exec run becomes the command, so that no part of it stays in memory. Its namespace must be
// that of /proc/PID/ns/net, which ends with the command, while plugins run in the host's namespace.
// So this program is executed three times:
//
//  1. it makes the namespace and executes itself in it, with the same PID;
//  2. there it starts itself on the host, waits, and becomes the command;
//  3. on the host it attaches the namespace, as run does, and ends.
//
// The records of the attachment are stale after the command has ended: the next run deletes them,
// as after a killed run.
const (
	hostNSVar = "CNIBOX_RUN_HOST"   // for the second: the descriptor of the host's namespace
	AttachVar = "CNIBOX_RUN_ATTACH" // for the third: the path of the namespace
)

// Unset returns an environment without some variables.
func Unset(environ []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(names, name)
	})
}

// reexec returns this call as a command with a variable set.
func (r *Run) reexec(name, value string) program.Command {
	environ := Unset(r.Environ, hostNSVar, AttachVar)
	return program.Command{Args: append([]string{"cni-exec"}, r.Args...), Self: true, Environ: append(environ, name+"="+value)}
}

// InPlace is the first and the second process of a run with --exec.
func (r *Run) InPlace(ctx context.Context, signals chan os.Signal) (exit int, err error) {
	if fd := r.Getenv(hostNSVar); fd != "" {
		host, err := netns.Open("/proc/self/fd/" + fd)
		if err != nil {
			return exitError, spec.Errorf(spec.CodeNetNS, "%w", err)
		}
		defer host.Close()
		if n, err := strconv.Atoi(fd); err == nil {
			unix.CloseOnExec(n) // the command must not have it
		}
		return r.becomeCommand(ctx, host, signals)
	}
	host, err := netns.Current()
	if err != nil {
		return exitError, err
	}
	defer host.Close()
	ns, err := netns.New()
	if err != nil {
		return exitError, fmt.Errorf("make a network namespace: %w", err)
	}
	defer ns.Close()
	if err := upLo(ns); err != nil {
		return exitError, fmt.Errorf("bring lo up: %w", err)
	}
	err = netns.OnDiscardedThread(func() error {
		if err := ns.Enter(); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(host.FD()), unix.F_SETFD, 0); err != nil { // it stays open across execve(2)
			return os.NewSyscallError("fcntl F_SETFD", err)
		}
		self := r.reexec(hostNSVar, fmt.Sprint(host.FD()))
		exit, err = become(ctx, &self, signals)
		return err
	})
	return max(exit, exitError), err
}

// becomeCommand attaches the namespace of this process and becomes the command.
func (r *Run) becomeCommand(ctx context.Context, host *netns.NS, signals <-chan os.Signal) (exit int, err error) {
	came := CatchSignals() // including those that are passed to the third process
	own, err := netns.Current()
	if err != nil {
		return exitError, err
	}
	defer own.Close()
	path := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	err = netns.OnDiscardedThread(func() (err error) {
		if err := host.Enter(); err != nil {
			return err
		}
		attach := r.reexec(AttachVar, path)
		attach.Stdin, attach.Stdout, attach.Stderr, attach.Signals = strings.NewReader(""), r.Stdout, r.Stderr, signals
		exit, err = attach.Run()
		return err
	})
	if err != nil || exit != exitOK {
		return exit, err // the third process has printed its error
	}
	around := commandEnv{dns: r.dnsOf(own), servers: r.Servers, others: r.hostsWithout(own), warn: r.Runner.Warn}
	err = netns.OnDiscardedThread(func() (err error) { // in the namespace, as all threads
		around.mount()
		r.Log.Write(exitOK)
		cmd := program.Command{Args: r.Command, Environ: Unset(r.Environ, hostNSVar)}
		exit, err = become(ctx, &cmd, came)
		return &hint.Error{Err: err, Hint: hint.Start(err)}
	})
	return exit, err
}

// AttachOnly is the third process of a run with --exec.
func (r *Run) AttachOnly(ctx context.Context, path string, signals <-chan os.Signal) (exit int, err error) {
	defer interrupt.Begin()()
	r.netns = path
	err = r.attach(ctx, signals)
	r.ours()
	if err != nil {
		return attachExit(err), errors.Join(err, r.detach(ctx))
	}
	return exitOK, nil
}
