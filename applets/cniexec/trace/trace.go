// Package trace follows the first packet of a flow through network namespaces by what the kernel
// reports: nf_tables its rules, route netlink its routes and neighbours, sock_diag the sockets. The
// package evaluates no rules.
package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/nft"
)

// A Place is a network namespace on the path of the packet.
type Place struct {
	Name string // "host", or the container
	NS   *netns.NS
	Flow nft.Flow // the packets that are traced there
}

// A Request says what to trace.
type Request struct {
	Places    []Place          // in the order of the path
	Published []netip.AddrPort // to which plugins map the port; empty: not published
	Wait      time.Duration    // for the first packet
	Send      func() error     // sends it; nil: Follow waits for it
}

// A Trace is the path of a packet.
type Trace struct {
	Reached bool   `json:"reached"` // the packet has reached a socket, or left the traced namespaces
	Outcome string `json:"outcome"` // where the path ended
	Advice  string `json:"advice"`  // what to do about it
	Steps   []Step `json:"steps"`
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

func ruleOf(e nft.Traced) Rule {
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
	tracers []*nft.Tracer

	mu      sync.Mutex
	events  [][]nft.Traced // by place
	lost    bool           // messages were lost
	err     error
	changed chan struct{} // has a value if one of these has changed
}

// Follow traces a packet. The error is that of the kernel's answers, or of the context; a packet
// that does not come is not an error.
func Follow(ctx context.Context, r Request) (*Trace, error) {
	f := &follower{Request: r, events: make([][]nft.Traced, len(r.Places)), changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	stop := func() {
		cancel()
		listening.Wait()
	}
	defer func() {
		stop()
		for _, t := range f.tracers {
			t.Close()
		}
	}()
	for i, p := range r.Places {
		t, err := nft.Trace(p.NS, p.Flow)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		f.tracers = append(f.tracers, t)
		listening.Go(func() { f.listen(ctx, i, t) })
	}
	if r.Send != nil {
		if err := r.Send(); err != nil && !errors.Is(err, unix.EPERM) { // caused by a rule of output
			return f.unsent(err), nil
		}
	}
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	stop()
	for i, t := range f.tracers { // messages of different namespaces about one packet may be read in any order
		f.hear(i, t.Rest)
	}
	if err := f.failed(); err != nil {
		return nil, err
	}
	return f.trace()
}

// listen reads the messages of a place until the context ends.
func (f *follower) listen(ctx context.Context, place int, t *nft.Tracer) {
	for f.hear(place, func() ([]nft.Traced, bool, error) { return t.Next(ctx) }) {
	}
}

// hear adds messages of a place; false: there are no more.
func (f *follower) hear(place int, next func() ([]nft.Traced, bool, error)) bool {
	events, lost, err := next()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[place] = append(f.events[place], events...)
	f.lost = f.lost || lost
	if err != nil && !errors.Is(err, context.Canceled) {
		f.err = err
	}
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return err == nil
}

// failed returns an error if messages of the kernel were lost.
func (f *follower) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && f.lost {
		return errors.New("the kernel has dropped messages, as too many packets match: name an address and a port")
	}
	return f.err
}

// wait returns at the end of the packet's path, or if the packet does not come.
func (f *follower) wait(ctx context.Context) error {
	timer := time.NewTimer(f.Wait)
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
	for i, events := range f.events {
		keep := maxAhead
		if i == 0 {
			keep = 0
		}
		f.events[i] = slices.Delete(events, 0, max(0, len(events)-keep))
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
	var from *nft.Packet
	for _, events := range f.events {
		w := walk(events, from)
		ways = append(ways, w)
		if w.last() == nil {
			continue
		}
		from = &w.last().after
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
