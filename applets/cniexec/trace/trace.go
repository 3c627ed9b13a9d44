// Package trace follows the first packet of a flow through network namespaces by what the kernel
// reports: nf_tables its rules, route netlink its routes and neighbours, sock_diag the sockets. The
// package evaluates no rules.
package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft/foreign"
)

// A Place is a network namespace on the path of the packet.
type Place struct {
	Name string // "host", or the container
	NS   *netns.NS
	Flow foreign.Flow // the packets that are traced there
}

// A Request says what to trace.
type Request struct {
	Places    []Place                 // in the order of the path
	Published []netip.AddrPort        // to which plugins map the port; empty: not published
	Wait      time.Duration           // for the first packet
	Send      func() (*Socket, error) // sends it; nil: Follow waits for it
}

// A Trace is the path of a packet.
type Trace struct {
	Reached bool   `json:"reached"` // the packet has reached a socket, or left the traced namespaces
	Outcome string `json:"outcome"` // where the path ended
	Advice  string `json:"advice"`  // what to do about it
	Steps   []Step `json:"steps"`

	unreported bool  // the outcome follows from messages that have not come
	end        *site // of the last step; nil: the packet has not come
}

// A Step is a hook, a route, a neighbour or a socket.
type Step struct {
	Place       string `json:"place"`
	Kind        string `json:"kind"`        // "prerouting" and the like, "bridge prerouting", "route", "neighbour", "port"
	In          string `json:"in"`          // link, of a hook
	Out         string `json:"out"`         // link, of a hook
	Source      string `json:"source"`      // of the packet at the hook
	Destination string `json:"destination"` // of the packet at the hook
	Rules       []Rule `json:"rules"`       // of a hook, in order
	Text        string `json:"text"`        // of other steps, and of the first hook of a place
}

// A Rule is a rule that has matched, the end of a chain, or a translation by connection tracking
// alone.
type Rule struct {
	Family   string `json:"family"`
	Table    string `json:"table"`
	Chain    string `json:"chain"`
	Priority *int32 `json:"priority"` // nil: another chain jumps to this one
	Handle   uint64 `json:"handle"`   // 0: the end of the chain
	Verdict  string `json:"verdict"`
	Policy   bool   `json:"policy"`  // the verdict is the chain's policy
	NAT      string `json:"nat"`     // "dnat to ADDRESS" or "snat to ADDRESS"
	Comment  string `json:"comment"` // of a rule that drops the packet
}

func ruleOf(e foreign.Traced) Rule {
	r := Rule{Family: e.Family, Table: e.Table, Chain: e.Chain, Handle: e.Handle, Verdict: e.Verdict, Policy: e.Policy}
	if e.Base != nil {
		r.Priority = &e.Base.Priority
	}
	return r
}

// passes reports whether it has decided nothing: a rule without a verdict, or the end of a chain
// that continues.
func (r Rule) passes() bool {
	return r.NAT == "" && (r.Verdict == "continue" || r.Handle == 0 && r.Verdict != "drop")
}

// chain returns the chain in the syntax of nft.
func (r Rule) chain() string { return r.Family + " " + r.Table + " " + r.Chain }

// String formats the rule as nft does.
func (r Rule) String() string {
	if r.Table == "" {
		return r.NAT + " (connection tracking)"
	}
	text := r.chain()
	if r.Priority != nil {
		text += fmt.Sprintf(" (%d)", *r.Priority)
	}
	if r.Handle != 0 {
		text += fmt.Sprintf(" handle %d", r.Handle)
	}
	switch {
	case r.NAT != "":
		return text + ": " + r.NAT
	case r.Policy:
		return text + ": " + r.Verdict + " (policy)"
	case r.Comment != "":
		return fmt.Sprintf("%s: %s comment %q", text, r.Verdict, r.Comment)
	}
	return text + ": " + r.Verdict
}

// String formats the step in one line, without rules that have decided nothing.
func (s Step) String() string {
	words := []string{s.Place, s.Kind}
	if s.In != "" {
		words = append(words, "from", s.In)
	}
	if s.Out != "" {
		words = append(words, "to", s.Out)
	}
	if s.Text != "" {
		words = append(words, s.Text)
	}
	parts := []string{strings.Join(words, " ")}
	for _, r := range s.Rules {
		if !r.passes() {
			parts = append(parts, r.String())
		}
	}
	return strings.Join(parts, " -> ")
}

// The time without messages of the kernel after which the packet counts as ended, and the time for
// a neighbour, which the kernel solicits three times, a second apart.
const (
	quiet     = time.Second
	resolving = 4 * time.Second
)

// A follower is a running trace.
type follower struct {
	Request
	tracers []*foreign.Tracer
	sites   []*site // to be closed

	mu      sync.Mutex
	events  [][]foreign.Traced // by place
	start   int                // of those of the first place: where the first message about the packet is searched
	err     error
	changed chan struct{} // has a value if one of these has changed
}

// Follow traces a packet. The error is that of the kernel's answers, or of the context; a packet
// that does not come is not an error.
//
// Of a busy flow not all packets are traced in all places, and messages may be lost. A packet that has reached its end
// is the result in any case; one that seems to be lost only if everything about it has been reported, or else another
// one is followed.
func Follow(ctx context.Context, r Request) (*Trace, error) {
	f := &follower{Request: r, changed: make(chan struct{}, 1)}
	defer f.close()
	if err := f.begin(); err != nil {
		return nil, err
	}
	var socket *Socket
	if r.Send != nil {
		var err error
		if socket, err = r.Send(); socket != nil {
			defer socket.Close()
		}
		if err != nil && !errors.Is(err, unix.EPERM) { // caused by a rule of output
			return f.unsent(err)
		}
	}
	deadline := time.Now().Add(r.Wait)
	var unclear *Trace
	for {
		if err := f.listenDuring(ctx, func(ctx context.Context) error { return f.wait(ctx, deadline) }); err != nil {
			return nil, err
		}
		t, err := f.trace()
		switch {
		case err != nil:
			return nil, err
		case unclear != nil && len(t.Steps) == 0:
			return unclear, nil
		case !t.unreported || f.whole():
			return t, f.answer(ctx, t, socket)
		}
		if unclear = t.unclear(r.Places[0].Flow); time.Now().After(deadline) {
			return unclear, nil
		}
		if err := f.another(); err != nil {
			return nil, err
		}
	}
}

// begin begins to trace in all places. Packets that have come before all places are traced do not count, so the
// messages of the first place are dropped last.
func (f *follower) begin() error {
	for _, p := range f.Places {
		t, err := foreign.Trace(p.NS, p.Flow)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		f.tracers = append(f.tracers, t)
	}
	return f.restart()
}

// restart drops all messages.
func (f *follower) restart() error {
	for _, t := range slices.Backward(f.tracers) {
		if err := t.Restart(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events, f.start = make([][]foreign.Traced, len(f.Places)), 0
	return nil
}

func (f *follower) close() {
	for _, s := range f.sites {
		s.conn.Close()
	}
	for _, t := range f.tracers {
		t.Close()
	}
}

// listenDuring reads the messages of all places while fn runs, and then those that are pending: messages of
// different namespaces about one packet may be read in any order.
func (f *follower) listenDuring(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	for i, t := range f.tracers {
		listening.Go(func() {
			for f.hear(i, func() ([]foreign.Traced, error) { return t.Next(ctx) }) {
			}
		})
	}
	err := fn(ctx)
	cancel()
	listening.Wait()
	for i, t := range f.tracers {
		f.hear(i, t.Rest)
	}
	return cmp.Or(err, f.failed())
}

// hear adds messages of a place; false: there are no more.
func (f *follower) hear(place int, next func() ([]foreign.Traced, error)) bool {
	events, err := next()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[place] = append(f.events[place], events...)
	if err != nil && !errors.Is(err, context.Canceled) {
		f.err = err
	}
	f.again()
	return err == nil
}

// failed returns the error of reading messages.
func (f *follower) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// wait returns at the end of the packet's path, or if the packet does not come before the deadline.
func (f *follower) wait(ctx context.Context, deadline time.Time) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	var since time.Time // time of the last message about the packet
	seen := 0
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.changed:
			if err := f.failed(); err != nil {
				return err
			}
			ways := f.ways()
			n := hooks(ways)
			switch {
			case ended(ways):
				return nil
			case n > seen:
				seen, since = n, time.Now()
				timer.Reset(quiet)
			case n == 0:
				f.forget()
			}
			if n > 0 && f.prefer() {
				seen = 0
			}
		case <-timer.C:
			if seen == 0 || time.Since(since) > resolving || !f.resolves() {
				return nil
			}
			timer.Reset(quiet)
		}
	}
}

// maxAhead is how many messages of a namespace may be read before those of the one from which the
// packet comes.
const maxAhead = 1000

// forget drops messages about other packets while the packet has not come.
func (f *follower) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.events[0][f.start:], begins) {
		return // it has come since
	}
	f.start = 0
	for i, events := range f.events {
		keep := maxAhead
		if i == 0 {
			keep = 0
		}
		f.events[i] = slices.Delete(events, 0, max(0, len(events)-keep))
	}
}

// packet returns the packet that is followed; nil: none has come.
func (f *follower) packet() *foreign.Packet {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events[0][f.start:] {
		if begins(e) {
			return e.Packet
		}
	}
	return nil
}

// begins reports whether a message is the first one about a packet that matches.
func begins(e foreign.Traced) bool { return e.Own == "first" && e.Handle != 0 && e.Packet != nil }

// whole reports whether everything about the followed packet is reported.
func (f *follower) whole() bool { return f.reports(f.packet()) }

// reports reports whether nothing about a packet can be missing. That the first place has traced it is known.
func (f *follower) reports(p *foreign.Packet) bool {
	if p == nil || f.tracers[0].Missed() {
		return false
	}
	return !slices.ContainsFunc(f.tracers[1:], func(t *foreign.Tracer) bool { return t.Misses(p) })
}

// prefer follows another packet if something about the present one may be missing, and nothing about that.
func (f *follower) prefer() bool {
	if f.whole() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, e := range f.events[0][f.start:] {
		if begins(e) && f.reports(e.Packet) {
			f.start += i
			f.again()
			return true
		}
	}
	return false
}

// another lets wait follow the next packet or, where messages have been lost, one that comes from now on.
func (f *follower) another() error {
	if slices.ContainsFunc(f.tracers, (*foreign.Tracer).Missed) {
		return f.restart()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.again()
	present := true
	for i, e := range f.events[0][f.start:] {
		switch {
		case !begins(e):
		case present:
			present = false
		default:
			f.start += i
			return nil
		}
	}
	f.start = len(f.events[0])
	return nil
}

// again lets wait look at the messages again.
func (f *follower) again() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// hooks returns the number of hooks that the packet has reached.
func hooks(ways []way) (n int) {
	for _, w := range ways {
		n += len(w.hooks)
	}
	return n
}

// ways returns the path of the packet through each place, up to the last that it has reached.
func (f *follower) ways() (ways []way) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var from *foreign.Packet
	for i, events := range f.events {
		if i == 0 {
			events = events[f.start:]
		}
		w := walk(events, from)
		if ways = append(ways, w); w.last() != nil {
			from = &w.last().after
		}
		if from == nil {
			return ways // what comes to the other places is not from the first one
		}
	}
	return ways
}

// ended reports whether the path of the packet is complete.
func ended(ways []way) bool {
	for _, w := range ways {
		if w.dropped != nil {
			return true
		}
	}
	for i := len(ways) - 1; i >= 0; i-- {
		if h := ways[i].last(); h != nil {
			return h.name == "input" && h.passed
		}
	}
	return false
}
