// Package watch reloads when what attachments have on the host was taken away: it follows the kernel and firewalld.
package watch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"cnibox/internal/interrupt"
	"cnibox/internal/memory"
	"cnibox/internal/netns"
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

// A Watch reloads after each event.
type Watch struct {
	Sockets []string                  // of the system bus, see [BusSockets]
	Own     func(program string) bool // is of this binary: what it deletes is meant to go
	Reload  func(context.Context)     // reloads in a process of its own, so that this one stays small
	Warn    func(format string, args ...any)
}

// Run reloads when it begins, and again after each event, until a signal comes. It sleeps in the
// kernel meanwhile: nothing is polled.
func (w *Watch) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer interrupt.Begin()() // its reload is another process, which ends first
	events := make(chan string, 1)
	if err := w.watchAll(ctx, events, cancel); err != nil {
		return err
	}
	select {
	case <-events: // all that was before the first reload
	default:
	}
	for {
		end := w.startReload(ctx)
		select {
		case <-ctx.Done():
		case why := <-events:
			w.Warn("reload: %s", why)
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
func (w *Watch) startReload(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Reload(ctx)
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

// watchAll watches the rule set, the links, and firewalld. Each event is what has happened, for
// people; events that come while one is pending are dropped. An error of the kernel's
// notifications is the cause that ends the context.
func (w *Watch) watchAll(ctx context.Context, events chan<- string, fail context.CancelCauseFunc) error {
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
	rules, err := nft.WatchRules(netns.Host())
	if err != nil {
		return err
	}
	links, err := rtnl.WatchLinks(netns.Host())
	if err != nil {
		rules.Close()
		return err
	}
	go watch(func() (string, error) { return "rules of cnibox were deleted", rules.Deleted(ctx, w.Own) })
	go watch(func() (string, error) {
		name, err := links.BridgeGone(ctx)
		return strings.TrimSpace("bridge "+name) + " was deleted", err
	})
	tried := make(chan struct{})
	go w.watchFirewalld(ctx, event, sync.OnceFunc(func() { close(tried) }))
	select {
	case <-tried:
	case <-time.After(patience): // a bus that hangs
	}
	return nil
}
