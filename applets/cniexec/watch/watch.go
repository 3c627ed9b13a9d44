// Package watch follows the kernel and firewalld, and reloads when something that attachments have on the host was deleted.
package watch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
)

// A burst of events ends after burstPause without an event, and at the latest after longestBurst:
// traffic shall work again within a second. A reload that takes longer than waitLimit, such as one
// that waits for a verb that hangs, is ended; the next one does its work.
const (
	burstPause   = 50 * time.Millisecond
	longestBurst = 250 * time.Millisecond
	waitLimit    = 500 * time.Millisecond
)

// mostCauses is the maximum number of events of a burst that are named.
const mostCauses = 3

// A Watch reloads after each event.
type Watch struct {
	Sockets []string // of the system bus, see [BusSockets]
	Warn    func(format string, args ...any)

	// Reload reloads in its own process, so that this one stays small; why is the event before it.
	Reload func(ctx context.Context, why string)

	ConfDir   string           // of networks
	LeaseDirs func() []string  // directories with leases of networks, each with the name of its network
	Leased    func(Lease) bool // a live attachment has the address

	// Lacking reports whether a live attachment lacks some of the deleted parts of the rule set. It
	// returns those of attachments with which a verb is at work, about which it says nothing.
	Lacking func(deleted []nft.Part) (lacking bool, busy []nft.Part)

	Every func(ctx context.Context) // called each [Interval]; nil: not called
}

// Interval is how often Every is called.
const Interval = time.Minute

// Run reloads at the beginning and after each event, until a signal ends it. In between it sleeps
// in the kernel; it does not poll.
func (w *Watch) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer interrupt.Begin()() // its reload is another process, which ends first
	events := make(chan string, mostCauses)
	if err := w.watchAll(ctx, events, cancel); err != nil {
		return err
	}
	return w.reloadAfter(ctx, events)
}

// reloadAfter reloads at once and after each burst of events, until ctx ends; its cause is the error,
// nil for a signal.
func (w *Watch) reloadAfter(ctx context.Context, events <-chan string) error {
	for all := (causes{"the watch was started"}); ; {
		for len(events) > 0 { // those during the last reload: the next one covers them
			all = all.with(<-events)
		}
		ended, end := w.startReload(ctx, strings.Join(all, "; "))
		all = w.next(ctx, events, ended)
		end()
		switch err := context.Cause(ctx); {
		case errors.As(err, new(interrupt.Signal)):
			return nil
		case err != nil:
			return err
		}
	}
}

// next waits for the next burst of events, or the end of ctx, and returns the events. Meanwhile it
// calls Every, except while the reload runs.
func (w *Watch) next(ctx context.Context, events <-chan string, reloaded <-chan struct{}) causes {
	var ticks <-chan time.Time
	if w.Every != nil {
		ticker := time.NewTicker(Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case why := <-events:
			return burst(ctx, why, events)
		case <-ticks:
			select {
			case <-reloaded:
				w.Every(ctx)
				memory.Free()
			default: // it is running
			}
		}
	}
}

// startReload starts a reload. It returns a channel that is closed at its end, and a function that
// waits for the end, and forces it after waitLimit.
func (w *Watch) startReload(ctx context.Context, why string) (ended <-chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Reload(ctx, why)
		memory.Free()
	}()
	return done, func() {
		defer time.AfterFunc(waitLimit, cancel).Stop()
		<-done
		cancel()
	}
}

// causes are the events before a reload, each once, and at most mostCauses.
type causes []string

func (c causes) with(why string) causes {
	if slices.Contains(c, why) || len(c) >= mostCauses {
		return c
	}
	return append(c, why)
}

// burst returns the first event and those after it, until none comes for a while.
func burst(ctx context.Context, first string, events <-chan string) causes {
	all := causes{first}
	end := time.NewTimer(longestBurst)
	defer end.Stop()
	for {
		pause := time.NewTimer(burstPause)
		select {
		case why := <-events:
			pause.Stop()
			all = all.with(why)
			continue
		case <-pause.C:
		case <-end.C:
		case <-ctx.Done():
		}
		pause.Stop()
		return all
	}
}

// offer adds an event, unless mostCauses are pending: those are reason enough.
func offer(events chan<- string, why string) {
	select {
	case events <- why:
	default:
	}
}

// watchAll watches the rule set, links, addresses, forwarding, leases, and firewalld. Each event is
// a text for messages. An error of the kernel's notifications ends the context, as its cause.
func (w *Watch) watchAll(ctx context.Context, events chan<- string, fail context.CancelCauseFunc) error {
	event := func(why string) { offer(events, why) }
	watch := func(next func() (string, error)) {
		for {
			why, err := next()
			if err != nil {
				fail(err) // ctx may have ended before
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
	go func() { fail(w.watchRules(ctx, rules.Next, event)) }() // ctx may have ended before
	go watch(func() (string, error) { return links.Lost(ctx) })
	leases, err := w.openLeases()
	if err != nil {
		w.Warn("reload: leases are not watched: %v", err)
	} else {
		go w.watchLeases(ctx, leases, event)
	}
	tried := make(chan struct{})
	go w.watchFirewalld(ctx, event, sync.OnceFunc(func() { close(tried) }))
	select {
	case <-tried:
	case <-time.After(waitLimit): // a bus that hangs
	}
	return nil
}
