// Package trace follows the first packet of a flow through network namespaces, as the kernel reports
// it: nf_tables its rules, route netlink its routes and neighbours, sock_diag the sockets. No rule is
// evaluated here.
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

// A Place is a network namespace on the way.
type Place struct {
	Name string // "host", or the container
	NS   *netns.NS
	Flow nft.Flow // which packets are traced there
}

// A Request is what to trace.
type Request struct {
	Places    []Place          // in the order in which the packet comes to them
	Published []netip.AddrPort // where plugins lead the port to; empty: it is not published
	Wait      time.Duration    // for the first packet
	Send      func() error     // sends it; nil: it is waited for
}

// A Trace is the way of a packet.
type Trace struct {
	Reached bool   `json:"reached"` // it came to a socket, or left the namespaces that were looked at
	Outcome string `json:"outcome"` // where it ended
	Advice  string `json:"advice"`  // what to do about it
	Steps   []Step `json:"steps"`
}

// A Step is a hook, a route, a neighbour or a socket.
type Step struct {
	Place       string `json:"place"`
	Kind        string `json:"kind"`        // "prerouting" and the like, "bridge prerouting", "route", "neighbour", "port"
	In          string `json:"in"`          // link, of a hook
	Out         string `json:"out"`         // the same
	Source      string `json:"source"`      // of the packet as it came to the hook
	Destination string `json:"destination"` // the same
	Rules       []Rule `json:"rules"`       // of a hook, in order
	Text        string `json:"text"`        // of others, and of the first hook of a place
}

// A Rule is one that has matched, the end of a chain, or a translation by connection tracking alone.
type Rule struct {
	Family   string `json:"family"`
	Table    string `json:"table"`
	Chain    string `json:"chain"`
	Priority *int32 `json:"priority"` // nil: another chain jumps to it
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

// passes reports whether nothing was decided: by a rule without a verdict, or by the end of a chain that
// lets the packet go on.
func (r Rule) passes() bool {
	return r.NAT == "" && (r.Verdict == "continue" || r.Handle == 0 && r.Verdict != "drop")
}

// chain is the chain as nft takes it.
func (r Rule) chain() string { return r.Family + " " + r.Table + " " + r.Chain }

// String is the rule in the words of nft.
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

// String is the step in one line, without what has decided nothing.
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

// How long the kernel may be silent before the packet counts as ended, and how long it is waited for
// a neighbour, which is asked for three times, a second apart.
const (
	quiet     = time.Second
	resolving = 4 * time.Second
)

// A follower is a trace at work.
type follower struct {
	Request
	tracers []*nft.Tracer

	mu      sync.Mutex
	events  [][]nft.Traced // by place
	lost    bool           // messages
	err     error
	changed chan struct{} // has one if one of these has changed
}

// Follow traces a packet. The error is about the kernel's answers, or the context's; a packet that does
// not come is none.
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
		if err := r.Send(); err != nil && !errors.Is(err, unix.EPERM) { // which a rule of output has caused
			return f.unsent(err), nil
		}
	}
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	stop()
	for i, t := range f.tracers { // what one namespace reports of a packet may be read before that of another
		f.hear(i, t.Rest)
	}
	if err := f.failed(); err != nil {
		return nil, err
	}
	return f.trace()
}

// listen reads what a place reports until the context ends.
func (f *follower) listen(ctx context.Context, place int, t *nft.Tracer) {
	for f.hear(place, func() ([]nft.Traced, bool, error) { return t.Next(ctx) }) {
	}
}

// hear adds what a place reports; false: it is the last.
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

// failed is an error if not all that the kernel reports was read.
func (f *follower) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil && f.lost {
		return errors.New("the kernel has dropped messages, as too many packets match: name an address and a port")
	}
	return f.err
}

// wait returns when the way of the packet has ended, or when it has not come.
func (f *follower) wait(ctx context.Context) error {
	timer := time.NewTimer(f.Wait)
	defer timer.Stop()
	var since time.Time // when the packet was reported last
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

// maxAhead is how many messages of a namespace may be read before those of the one that the packet comes
// from.
const maxAhead = 1000

// forget drops messages that are not about the packet, which has not come.
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

// hooks is how many hooks the packet has come to.
func hooks(ways []way) (n int) {
	for _, w := range ways {
		n += len(w.hooks)
	}
	return n
}

// ways are those of the packet through each place, up to the last that it came to.
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

// ended reports whether nothing more can come of the packet.
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
