// Package sandbox creates the network namespaces of cni-exec, and runs commands in them.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// TakeDown bounds the detaching of a namespace after its command has ended, or the result of its
// ADD could not be written. A signal does not stop it; after SIGKILL the next run cleans up.
const TakeDown = 30 * time.Second

// The exit codes of a run in addition to the command's.
const (
	exitOK = iota
	exitError
)

// A Run is a command in its own network namespace, which is attached for it.
//
// Only a descriptor of the process refers to the namespace, so the kernel deletes it, with its links,
// when the process ends.
type Run struct {
	applet.Process
	Names
	Command  []string
	Networks []Network // in the order of their ADDs
	Name     string    // empty: none
	Servers  []string  // name servers instead of the networks'

	Attaching func(Network) // is called before each ADD

	netns    string // path of the namespace, for plugins
	ns       *netns.NS
	attached []Network
	dns      spec.DNS // of the first network with DNS

	// ours ends the time in which signals end run; afterwards they are the command's.
	ours func()
}

// A Network is a network, and the attachment to it; that of a [Run] without the namespace.
type Network struct {
	List        *chain.List
	RuntimeConf chain.RuntimeConf // with the name of its interface
}

// Attachment returns the names of the attachment.
func (n *Network) Attachment() spec.Attachment { return n.RuntimeConf.On(n.List) }

// CatchSignals returns the signals that are passed to a command. After nohup(1) SIGHUP stays
// ignored.
func CatchSignals() chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(c, unix.SIGHUP)
	}
	return c
}

// become replaces this process with a command. A signal that came before would be lost, so it ends
// this process, with the exit code of a command that the signal ends.
func become(ctx context.Context, cmd *program.Command, signals chan os.Signal) (exit int, err error) {
	signal.Stop(signals) // waits for pending ones
	signal.Reset()       // from now on the kernel handles signals
	err = context.Cause(ctx)
	select {
	case s := <-signals:
		err = interrupt.Signal(s.(unix.Signal)) // all are, on Linux
	default:
	}
	if err != nil {
		return attachExit(err), err
	}
	return cmd.Become()
}

// Execute creates the namespace, attaches it, runs the command in it and detaches it. It returns
// the exit code of the command, also with an error, such as that of detaching.
func (r *Run) Execute(ctx context.Context, signals <-chan os.Signal) (exit int, err error) {
	defer interrupt.Begin()()
	if r.ns, err = netns.New(); err != nil {
		return exitError, fmt.Errorf("make a network namespace: %w", err)
	}
	defer r.ns.Close()
	// for external plugins, the path of a descriptor of this process
	r.netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.ns.FD())
	if r.Name != "" {
		release, err := r.takeName(ctx, r.Name, r.ns)
		if err != nil {
			return exitError, err
		}
		defer release()
		defer r.giveNameBack(ctx)
	}
	defer func() {
		if derr := r.detach(ctx); derr != nil {
			err = errors.Join(err, derr)
			exit = max(exit, exitError)
		}
	}()
	if err := upLo(r.ns); err != nil {
		return exitError, fmt.Errorf("bring lo up: %w", err)
	}
	err = r.attach(ctx, signals)
	defer r.ours()
	if err != nil {
		return attachExit(err), err
	}
	around := commandEnv{dns: r.dns, servers: r.Servers, warn: r.Runner.Warn}
	if r.Name != "" {
		around.name, around.hosts = r.Name, r.hostsFile(r.Name)
		if err := r.updateHosts(ctx); err != nil {
			r.Runner.Warn("/etc/hosts of named runs: %v", err)
		}
	} else {
		around.others = r.hostsWithout(r.ns)
	}
	err = netns.OnDiscardedThread(func() (err error) { // its mounts end with the thread
		if err := r.ns.Enter(); err != nil {
			return err
		}
		around.mount()
		cmd := program.Command{
			Args: r.Command, Environ: r.Environ, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Signals: signals,
			Started: memory.Free,
		}
		if exit, err = cmd.Run(); err != nil {
			err = &hint.Error{Err: err, Hint: hint.Start(err)}
		}
		return err
	})
	if err != nil {
		return max(exit, exitError), err
	}
	return exit, nil
}

// giveNameBack releases the name of the run, even after its context has ended.
func (r *Run) giveNameBack(ctx context.Context) {
	ctx, cancel := interrupt.UndoContext(ctx, TakeDown)
	defer cancel()
	if err := r.freeName(ctx, r.Name); err != nil {
		r.Runner.Warn("name %s: %v", r.Name, err)
	}
}

func upLo(ns *netns.NS) error {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	const lo = 1 // always that of the first link in a namespace
	up := true
	return conn.SetLink(lo, rtnl.LinkChange{Up: &up})
}

// attach adds the networks one after another. A signal ends it, and becomes the error. The runner
// undoes the failed ADD; detach undoes those before it.
func (r *Run) attach(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case sig := <-signals:
			cancel(interrupt.Signal(sig.(unix.Signal)))
		case <-done:
		}
	}()
	err := r.attachAll(ctx)
	r.ours = interrupt.PassToCommand()
	close(done)
	<-stopped // from now on signals are the command's
	var signal interrupt.Signal
	switch {
	case !errors.As(context.Cause(ctx), &signal):
		return err
	case err == nil:
		return spec.Errorf(spec.CodeTryAgain, "%w before the command was started", signal)
	}
	return fmt.Errorf("%w before the command was started: %w", signal, err)
}

// attachExit returns the exit code for an error before the command: after a signal that of a
// command which the signal ends.
func attachExit(err error) int {
	if signal := interrupt.Signal(0); errors.As(err, &signal) {
		return program.ExitSignal + int(signal)
	}
	return exitError
}

// attachAll adds the networks until one fails.
func (r *Run) attachAll(ctx context.Context) error {
	for _, a := range r.Networks {
		a.RuntimeConf.NetNS = r.netns
		r.Attaching(a)
		res, err := r.Runner.Add(ctx, a.List, a.RuntimeConf)
		if err != nil {
			return err
		}
		r.attached = append(r.attached, a)
		if len(r.dns.Nameservers) == 0 {
			r.dns = res.DNS
		}
	}
	return nil
}

// detach deletes the attachments.
func (r *Run) detach(ctx context.Context) error { return Detach(ctx, r.Runner, r.attached) }

// Detach deletes attachments in reverse, going on past failures, also after ctx has ended.
func Detach(ctx context.Context, runner *chain.Runner, attached []Network) error {
	ctx, cancel := interrupt.UndoContext(ctx, TakeDown)
	defer cancel()
	runner.KeepGoing = true
	var errs []error
	for _, a := range slices.Backward(attached) {
		if err := runner.Del(ctx, a.List, a.RuntimeConf); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", a.List.Name, err))
		}
	}
	return errors.Join(errs...)
}

// RandomHex returns random hexadecimal digits for names that must be unique on a host.
func RandomHex() string {
	return fmt.Sprintf("%0*x", chain.RunDigits, rand.Uint64()>>(64-4*chain.RunDigits))
}
