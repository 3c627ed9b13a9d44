package trace

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/nft/foreign"
)

// A hook is what has happened to a packet at one hook of one namespace.
type hook struct {
	name   string         // "prerouting", "bridge forward"
	before foreign.Packet // at the beginning
	after  foreign.Packet // in the last message
	rules  []Rule
	passed bool // it has reached the end of all chains
}

// A way is the path of one packet through one namespace, as far as it is reported.
type way struct {
	hooks   []*hook
	dropped *foreign.Traced // what has dropped it; nil: nothing in nf_tables
}

// last returns the last hook of the packet; nil: it was not there.
func (w *way) last() *hook {
	if len(w.hooks) == 0 {
		return nil
	}
	return w.hooks[len(w.hooks)-1]
}

// at returns the hook of that name; nil: the packet was not there.
func (w *way) at(name string) *hook {
	i := slices.IndexFunc(w.hooks, func(h *hook) bool { return h.name == name })
	if i < 0 {
		return nil
	}
	return w.hooks[i]
}

// hookName returns the name of a base chain's hook.
func hookName(e foreign.Traced) string {
	if e.Family == "bridge" {
		return "bridge " + e.Base.Hook
	}
	return e.Base.Hook
}

// same reports whether two packets have the same addresses and ports.
func same(a, b *foreign.Packet) bool { return a.Proto == b.Proto && a.Src == b.Src && a.Dst == b.Dst }

// walk finds the path of a packet in the messages of a namespace. The packet is that which has left
// another namespace as from or, with nil, the first one that matches the rules of this trace.
//
// The ID of a packet changes where a bridge passes it to the host and on lo, and its addresses
// change where it is translated, but never both at once. The path ends where the packet reaches a
// hook again, since it was sent again.
func walk(events []foreign.Traced, from *foreign.Packet) (w way) {
	ids := map[uint32]bool{}
	var h *hook
	var now *foreign.Packet // in the last message
	for i, e := range events {
		switch {
		case ids[e.ID]:
		case e.Packet == nil:
			continue
		case h == nil && from == nil:
			if e.Own != "first" || e.Handle == 0 {
				continue
			}
		case h == nil && !same(e.Packet, from), h != nil && !same(e.Packet, now):
			continue
		}
		ids[e.ID] = true
		if e.Own == "first" {
			if e.Packet == nil { // the end of the chain, reported after its rule
				continue
			}
			if w.at(hookName(e)) != nil {
				return w
			}
			h, now = &hook{name: hookName(e), before: *e.Packet, after: *e.Packet}, e.Packet
			w.hooks = append(w.hooks, h)
			continue
		}
		if e.Base != nil { // chains of ingress and egress without this trace's chains beside them
			if at := w.at(hookName(e)); at != nil {
				h = at
			} else if e.Packet != nil {
				h = &hook{name: hookName(e), before: *e.Packet, after: *e.Packet, passed: true}
				w.hooks = append(w.hooks, h)
			}
		}
		if h == nil {
			continue
		}
		if e.Packet != nil {
			h.translated(now, e.Packet)
			h.after, now = *e.Packet, e.Packet
		}
		if e.Own == "last" {
			h.passed = true
			continue
		}
		h.rules = append(h.rules, ruleOf(e))
		if e.Verdict == "drop" {
			w.dropped = &events[i]
			return w
		}
	}
	return w
}

// translated records that the addresses have changed. The reason is the last rule that accepted the
// packet, or connection tracking if the connection is known.
func (h *hook) translated(before, now *foreign.Packet) {
	nat := ""
	switch {
	case before == nil || same(before, now):
		return
	case now.Dst != before.Dst:
		nat = "dnat to " + addrText(now.Dst)
	default:
		nat = "snat to " + addrText(now.Src)
	}
	for i := len(h.rules) - 1; i >= 0; i-- {
		if r := &h.rules[i]; r.Verdict == "accept" && r.Handle != 0 && r.NAT == "" {
			r.NAT = nat
			return
		}
	}
	h.rules = append(h.rules, Rule{NAT: nat})
}

// addrText formats an address with its port, if it has one.
func addrText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}
