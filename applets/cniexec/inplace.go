package cniexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/internal/interrupt"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// With --exec run becomes the command, so that nothing of it stays in memory. Its namespace has
// to be that of /proc/PID/ns/net, which ends with the command, while plugins run in that of the
// host. So this program is executed three times:
//
//  1. it makes the namespace and executes itself in it, with the same PID;
//  2. there it starts itself on the host, waits, and becomes the command;
//  3. on the host it attaches the namespace, as run does, and ends.
//
// What is recorded of the attachment is stale when the command has ended: the next run deletes
// it, as after a run that was killed.
const (
	hostNSVar = "CNIBOX_RUN_HOST"   // of the second: the descriptor of the host's namespace
	attachVar = "CNIBOX_RUN_ATTACH" // of the third: the path of the namespace
)

// unset is an environment without a variable.
func unset(environ []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// again is this call, to be run once more with a variable set.
func (c *call) again(name, value string) chain.Command {
	environ := unset(unset(c.Environ, hostNSVar), attachVar)
	return chain.Command{Args: append([]string{"cni-exec"}, c.Args...), Self: true, Environ: append(environ, name+"="+value)}
}

// runInPlace is the first and the second process of a run with --exec.
func (c *call) runInPlace(ctx context.Context, signals chan os.Signal) (exit int, err error) {
	if fd := c.Getenv(hostNSVar); fd != "" {
		host, err := rtnl.OpenNS("/proc/self/fd/" + fd)
		if err != nil {
			return exitError, spec.Errorf(spec.CodeNetNS, "%w", err)
		}
		defer host.Close()
		if n, err := strconv.Atoi(fd); err == nil {
			unix.CloseOnExec(n) // it is not for the command
		}
		return c.becomeCommand(ctx, host, signals)
	}
	host, err := rtnl.Current()
	if err != nil {
		return exitError, err
	}
	defer host.Close()
	ns, err := rtnl.NewNS()
	if err != nil {
		return exitError, fmt.Errorf("make a network namespace: %w", err)
	}
	defer ns.Close()
	if err := upLo(ns); err != nil {
		return exitError, fmt.Errorf("bring lo up: %w", err)
	}
	err = nsid.OnDiscardedThread(func() error {
		if err := ns.Enter(); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(host.FD()), unix.F_SETFD, 0); err != nil { // it is kept by execve(2)
			return os.NewSyscallError("fcntl F_SETFD", err)
		}
		self := c.again(hostNSVar, fmt.Sprint(host.FD()))
		exit, err = become(ctx, &self, signals)
		return err
	})
	return max(exit, exitError), err
}

// becomeCommand attaches the namespace of this process and becomes the command.
func (c *call) becomeCommand(ctx context.Context, host *rtnl.NS, signals <-chan os.Signal) (exit int, err error) {
	came := catchSignals() // also those that are passed to the third process
	own, err := rtnl.Current()
	if err != nil {
		return exitError, err
	}
	defer own.Close()
	path := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	err = nsid.OnDiscardedThread(func() (err error) {
		if err := host.Enter(); err != nil {
			return err
		}
		attach := c.again(attachVar, path)
		attach.Stdin, attach.Stdout, attach.Stderr, attach.Signals = strings.NewReader(""), c.Stdout, c.Stderr, signals
		exit, err = attach.Run()
		return err
	})
	if err != nil || exit != exitOK {
		return exit, err // the third process has printed its own
	}
	around := surroundings{dns: c.dnsOf(own), servers: c.dns, others: c.hostsWithout(own), warn: c.runner.Warn}
	err = nsid.OnDiscardedThread(func() (err error) { // in the namespace, as all threads
		around.mount()
		c.Log.Write(exitOK)
		cmd := chain.Command{Args: c.command, Environ: unset(c.Environ, hostNSVar)}
		exit, err = become(ctx, &cmd, came)
		return &hinted{err, startHint(err)}
	})
	return exit, err
}

// attachOnly is the third process of a run with --exec.
func (s *sandbox) attachOnly(ctx context.Context, lists []*chain.List, path string, signals <-chan os.Signal) (exit int, err error) {
	defer interrupt.Begin()()
	s.target.NetNS = path
	err = s.attach(ctx, lists, signals)
	s.ours()
	if err != nil {
		return attachExit(err), errors.Join(err, s.detach(ctx))
	}
	return exitOK, nil
}
