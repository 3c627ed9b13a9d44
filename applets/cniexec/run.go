package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/internal/interrupt"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// takeDown is for detaching a namespace when its command has ended, or the result of its ADD
// could not be written.
// A signal does not end it; after SIGKILL the next run cleans up.
const takeDown = 30 * time.Second

// A sandbox is the namespace of one run and what is attached to it.
//
// Only a descriptor of the process refers to the namespace, so the kernel deletes it, with its links,
// when the process ends.
type sandbox struct {
	*call
	ns       *rtnl.NS
	attached []attached // in the order of the ADDs
	dns      spec.DNS   // of the first network that has any

	// ours ends that signals are left to the command, which begins when all is attached.
	ours func()
}

// An attached is a network and the attachment on it, for its DEL.
type attached struct {
	list   *chain.List
	target chain.Target // with the name of its interface
}

// run creates a network namespace, attaches it, runs the command in it and detaches it when the
// command ends. What a killed run leaves behind, and one with --exec, is deleted by the next one.
//
// The exit code is the command's; 1 if it was never started because the network failed.
// Signals are passed to the command; before it is started they end run, with the exit code of a
// command that they end.
func (c *call) run(ctx context.Context, operands []string) (exit int, err error) {
	switch {
	case len(operands) > 0:
		return 0, usage(`run: %q stands before "--": networks are named with --net, the command comes after "--"`, operands[0])
	case len(c.command) == 0:
		return 0, usage("run: the command is missing: cni-exec run -- COMMAND")
	case c.name != "" && c.containerID != "":
		return 0, usage("run: --name gives the container ID, so --container-id makes no sense with it")
	case c.name != "" && c.inPlace:
		return 0, usage("run: --name needs a process that gives it back, so it makes no sense with --exec")
	}
	if c.name != "" {
		if err := checkRunName(c.name); err != nil {
			return 0, usage("run: --name: %w", err)
		}
		c.containerID = chain.RunPrefix + c.name
	}
	if err := cmp.Or(c.prepare(), privileged(), c.Ready()); err != nil {
		return 0, err
	}
	c.target.ContainerID = c.containerID
	if c.containerID == "" {
		c.target.ContainerID = chain.RunPrefix + randomHex()
	}
	signals := catchSignals()
	defer signal.Stop(signals)

	path := c.Getenv(attachVar)
	if c.inPlace && path == "" {
		return c.runInPlace(ctx, signals)
	}
	lists, err := c.runLists()
	if err != nil {
		return 0, err
	}
	command := chain.Command{Args: c.command, Environ: c.Environ}
	if exit, err := command.Look(); err != nil {
		return exit, &hinted{err, startHint(err)}
	}
	// only those of run, and only if their namespace is gone
	ours := func(a spec.Attachment) bool { return strings.HasPrefix(a.ContainerID, chain.RunPrefix) }
	if err := c.runner.DeleteStale(ctx, ours); err != nil {
		c.runner.Warn("leftovers of a killed run: %v", err)
	}
	if err := c.freeDeadNames(ctx); err != nil {
		c.runner.Warn("names of killed runs: %v", err)
	}
	s := &sandbox{call: c}
	if c.inPlace {
		return s.attachOnly(ctx, lists, path, signals)
	}
	return s.live(ctx, lists, c.command, signals)
}

// catchSignals returns those that are passed to a command. After nohup(1) SIGHUP stays ignored.
func catchSignals() chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(c, unix.SIGHUP)
	}
	return c
}

// become replaces this process by a command. A signal that came before would be lost: it ends this
// process instead, with the exit code of a command that it ends.
func become(ctx context.Context, cmd *chain.Command, signals chan os.Signal) (exit int, err error) {
	signal.Stop(signals) // which waits for those on their way
	signal.Reset()       // from here on the kernel does it
	err = context.Cause(ctx)
	select {
	case s := <-signals:
		err = interrupt.By(s.(unix.Signal)) // all are, on Linux
	default:
	}
	if err != nil {
		return attachExit(err), err
	}
	return cmd.Become()
}

// runLists loads the networks asked for: without --net the default one, or the
// only one that is configured.
// Several without --net are an error.
func (c *call) runLists() ([]*chain.List, error) {
	names := c.nets
	if len(names) == 0 {
		configured, _ := chain.Networks(c.confDir)
		switch len(configured) {
		case 0:
			names = []string{defaultNetwork}
		case 1:
			names = configured
		default:
			return nil, spec.Errorf(spec.CodeConfig, "which network? name it with --net: %s", strings.Join(configured, ", "))
		}
	}
	lists := make([]*chain.List, len(names))
	for i, name := range names {
		l, err := c.lookup(name)
		if err != nil {
			return nil, err
		}
		lists[i] = l
	}
	return lists, c.canHonour(lists...)
}

// live runs the command in the sandbox and returns its exit code, also with an error, as of a detach
// after the command.
func (s *sandbox) live(ctx context.Context, lists []*chain.List, command []string, signals <-chan os.Signal) (exit int, err error) {
	defer interrupt.Begin()()
	if s.ns, err = rtnl.NewNS(); err != nil {
		return exitError, fmt.Errorf("make a network namespace: %w", err)
	}
	defer s.ns.Close()
	// a path for external plugins to a descriptor of this process
	s.target.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.ns.FD())
	if s.name != "" {
		release, err := s.takeName(ctx, s.name, s.ns)
		if err != nil {
			return exitError, err
		}
		defer release()
		defer s.giveNameBack(ctx)
	}
	defer func() {
		if derr := s.detach(ctx); derr != nil {
			err = errors.Join(err, derr)
			exit = max(exit, exitError)
		}
	}()
	if err := upLo(s.ns); err != nil {
		return exitError, fmt.Errorf("bring lo up: %w", err)
	}
	err = s.attach(ctx, lists, signals)
	defer s.ours()
	if err != nil {
		return attachExit(err), err
	}
	around := surroundings{dns: s.dns, servers: s.call.dns, warn: s.runner.Warn}
	if s.name != "" {
		around.name, around.hosts = s.name, s.hostsFile(s.name)
		if err := s.updateHosts(ctx); err != nil {
			s.runner.Warn("/etc/hosts of named runs: %v", err)
		}
	} else {
		around.others = s.hostsWithout(s.ns)
	}
	err = nsid.OnDiscardedThread(func() (err error) { // its mounts end with the thread
		if err := s.ns.Enter(); err != nil {
			return err
		}
		around.mount()
		cmd := chain.Command{
			Args: command, Environ: s.Environ, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Signals: signals,
			Started: freeMemory,
		}
		if exit, err = cmd.Run(); err != nil {
			err = &hinted{err, startHint(err)}
		}
		return err
	})
	if err != nil {
		return max(exit, exitError), err
	}
	return exit, nil
}

// giveNameBack ends the name of the run, however its context has ended.
func (s *sandbox) giveNameBack(ctx context.Context) {
	ctx, cancel := interrupt.Within(ctx, takeDown)
	defer cancel()
	if err := s.freeName(ctx, s.name); err != nil {
		s.runner.Warn("name %s: %v", s.name, err)
	}
}

// upLo sets lo up.
func upLo(ns *rtnl.NS) error {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	const lo = 1 // always the first link of a namespace
	up := true
	return conn.SetLink(lo, rtnl.LinkChange{Up: &up})
}

// attach adds the networks one after another. A signal ends it, and is the error then. The runner
// undoes the one that failed; detach those before it.
func (s *sandbox) attach(ctx context.Context, lists []*chain.List, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case sig := <-signals:
			cancel(interrupt.By(sig.(unix.Signal)))
		case <-done:
		}
	}()
	err := s.attachAll(ctx, lists)
	s.ours = interrupt.Pass()
	close(done)
	<-stopped // from here on signals are the command's
	var by interrupt.By
	switch {
	case !errors.As(context.Cause(ctx), &by):
		return err
	case err == nil:
		return spec.Errorf(spec.CodeTryAgain, "%w before the command was started", by)
	}
	return fmt.Errorf("%w before the command was started: %w", by, err)
}

// attachExit is the exit code for an error before the command: that of a command that a signal ends.
func attachExit(err error) int {
	if by := interrupt.By(0); errors.As(err, &by) {
		return chain.ExitSignal + int(by)
	}
	return exitError
}

// attachAll adds the networks until one fails.
func (s *sandbox) attachAll(ctx context.Context, lists []*chain.List) error {
	for i, l := range lists {
		s.network, s.target.IfName = l.Name, nthName(s.ifName, i)
		s.speak(l)
		t := s.target
		t.Args, t.Capabilities = s.arguments(lists, i)
		res, err := s.runner.Add(ctx, l, t)
		if err != nil {
			return err
		}
		s.attached = append(s.attached, attached{l, t})
		if len(s.dns.Nameservers) == 0 {
			s.dns = res.DNS
		}
	}
	return nil
}

// nthName counts up from the first interface's name: eth0, eth1; net5, net6. One without
// a number at its end counts net, net1.
func nthName(first string, n int) string {
	if n == 0 {
		return first
	}
	base := strings.TrimRight(first, "0123456789")
	from, _ := strconv.Atoi(first[len(base):]) // none is 0
	return base + strconv.Itoa(from+n)
}

// detach deletes the attachments in reverse, going on past failures.
func (s *sandbox) detach(ctx context.Context) error {
	ctx, cancel := interrupt.Within(ctx, takeDown)
	defer cancel()
	s.runner.KeepGoing = true
	var errs []error
	for i := len(s.attached) - 1; i >= 0; i-- {
		a := s.attached[i]
		if err := s.runner.Del(ctx, a.list, a.target); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", a.list.Name, err))
		}
	}
	return errors.Join(errs...)
}

// runDigits is how many digits the container ID of a run without a name has: 48 bits.
const runDigits = 12

// randomHex returns so many digits, for names that must be unique on a host.
func randomHex() string {
	return fmt.Sprintf("%0*x", runDigits, rand.Uint64()>>(64-4*runDigits))
}
