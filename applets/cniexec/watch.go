package cniexec

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/chain"
	"cnibox/internal/interrupt"
	"cnibox/internal/memory"
	"cnibox/nft"
	"cnibox/rtnl"
)

// A burst of events ends when there was none for burstPause, and is not waited for longer than
// longestBurst: traffic is to be back within a second. Nor is a reload that is at work for longer
// than patience, as one that waits for a verb that hangs: the next one does its work.
const (
	burstPause   = 50 * time.Millisecond
	longestBurst = 250 * time.Millisecond
	patience     = 500 * time.Millisecond
)

// watchAndReload reloads when it begins, and again after each event, until a signal comes. Each
// reload is a process of its own, so that this one stays small. It sleeps in the kernel
// meanwhile: nothing is polled.
func (c *call) watchAndReload(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer interrupt.Begin()() // its reload is another process, which ends first
	events := make(chan string, 1)
	if err := c.watchAll(ctx, events, cancel); err != nil {
		return err
	}
	select {
	case <-events: // all that was before the first reload
	default:
	}
	for {
		end := c.startReload(ctx)
		select {
		case <-ctx.Done():
		case why := <-events:
			c.runner.Warn("reload: %s", why)
			endOfBurst(ctx, events)
		}
		end()
		switch err := context.Cause(ctx); {
		case errors.As(err, new(interrupt.By)):
			return nil
		case err != nil:
			return err
		}
	}
}

// startReload starts a reload and returns a function that waits for its end, and brings that about
// when patience is over.
func (c *call) startReload(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.reloadAside(ctx)
		memory.Free()
	}()
	return func() {
		defer time.AfterFunc(patience, cancel).Stop()
		<-ended
		cancel()
	}
}

// endOfBurst returns when no event came for a while.
func endOfBurst(ctx context.Context, events <-chan string) {
	end := time.NewTimer(longestBurst)
	defer end.Stop()
	for {
		pause := time.NewTimer(burstPause)
		select {
		case <-events:
			pause.Stop()
			continue
		case <-pause.C:
		case <-end.C:
		case <-ctx.Done():
		}
		pause.Stop()
		return
	}
}

// watchedVar is set for a reload that --watch has started: it prints what it has repaired, or could
// not, and nothing where there is nothing to do.
const watchedVar = "CNIBOX_RELOAD_WATCHED"

// watched reports whether this is such a reload.
func (c *call) watched() bool { return c.Getenv(watchedVar) != "" }

// reloadAside runs reload with the flags of this call. A signal ends it as well.
func (c *call) reloadAside(ctx context.Context) {
	// The thread that has started the program has to stay until it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 1)
	defer context.AfterFunc(ctx, func() { signals <- unix.SIGTERM })()
	once := slices.DeleteFunc(slices.Clone(c.args), func(arg string) bool { return arg == "--watch" || strings.HasPrefix(arg, "--watch=") })
	command := chain.Command{
		Args: append([]string{"cni-exec"}, once...), Self: true, Environ: append(sandbox.Unset(c.Environ, watchedVar), watchedVar+"=1"),
		Stdin: strings.NewReader(""), Stdout: c.Stdout, Stderr: c.Stderr, Signals: signals,
	}
	if _, err := command.Run(); err != nil {
		c.runner.Warn("reload: %v", err)
	}
}

// watchAll watches the rule set, the links, and firewalld. Each event is what has happened, for
// people; events that come while one is pending are dropped. An error of the kernel's
// notifications is the cause that ends the context.
func (c *call) watchAll(ctx context.Context, events chan<- string, fail context.CancelCauseFunc) error {
	event := func(why string) {
		select {
		case events <- why:
		default:
		}
	}
	watch := func(next func() (string, error)) {
		for {
			why, err := next()
			if err != nil {
				fail(err) // unless ctx has ended before
				return
			}
			event(why)
		}
	}
	sockets, err := c.busSockets()
	if err != nil {
		return err
	}
	rules, err := nft.WatchRules(rtnl.Host())
	if err != nil {
		return err
	}
	links, err := rtnl.WatchLinks(rtnl.Host())
	if err != nil {
		rules.Close()
		return err
	}
	go watch(func() (string, error) { return "rules of cnibox were deleted", rules.Deleted(ctx, c.isOwn) })
	go watch(func() (string, error) {
		name, err := links.BridgeGone(ctx)
		return strings.TrimSpace("bridge "+name) + " was deleted", err
	})
	tried := make(chan struct{})
	go c.watchFirewalld(ctx, sockets, event, sync.OnceFunc(func() { close(tried) }))
	select {
	case <-tried:
	case <-time.After(patience): // a bus that hangs
	}
	return nil
}

// isOwn reports whether a program is one of this binary: what it deletes is meant to go.
func (c *call) isOwn(program string) bool {
	_, ok := c.Applets.Lookup(program)
	return ok || program == "cnibox"
}
