package nft

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// A Blocker is a chain of another program, at the hook forward, that drops or rejects packets: by
// its policy those that none of its rules accepts, or by a rule. An accept of another chain does
// not override it.
type Blocker struct {
	Family       string // in the syntax of nft(8)
	Table, Chain string
	Asks         bool  // before it drops, it jumps to CNI-FORWARD, where the firewall plugin accepts
	Rule         *Drop // nil: it drops what it does not accept

	in, out []string    // links whose packets a rule accepts without other conditions; some end with *
	pairs   [][2]string // pairs of links between which a rule accepts all
}

// A Drop is a rule that drops all packets with one property: the incoming or outgoing link, or the
// source or destination addresses.
type Drop struct {
	Chain    string
	Handle   uint64
	In, Out  string // may end with *
	Src, Dst netip.Prefix
}

// Hits reports whether the rule matches a link, or all of some addresses.
func (r *Drop) Hits(link string, subnets []netip.Prefix) bool {
	match := matches(link)
	within := func(p netip.Prefix) bool {
		return p.IsValid() && slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return p.Bits() <= s.Bits() && p.Contains(s.Addr()) })
	}
	return r.In != "" && match(r.In) || r.Out != "" && match(r.Out) || within(r.Src) || within(r.Dst)
}

// String describes what the rule drops.
func (r *Drop) String() string {
	switch {
	case r.In != "":
		return "what comes from " + r.In
	case r.Out != "":
		return "what goes to " + r.Out
	case r.Src.IsValid():
		return "what comes from " + r.Src.String()
	}
	return "what goes to " + r.Dst.String()
}

// Accepts reports whether the chain accepts all packets from and to a link. The name may end with
// *, as in rules.
func (b *Blocker) Accepts(link string) bool {
	return slices.ContainsFunc(b.in, matches(link)) && slices.ContainsFunc(b.out, matches(link))
}

// AcceptsWithin reports whether the chain accepts all packets from a bridge back to it: frames
// between its ports, which pass the chain with br_netfilter.
func (b *Blocker) AcceptsWithin(bridge string) bool {
	match := matches(bridge)
	return slices.ContainsFunc(b.in, match) || slices.ContainsFunc(b.out, match) ||
		slices.ContainsFunc(b.pairs, func(p [2]string) bool { return match(p[0]) && match(p[1]) })
}

// matches returns a function that reports whether a name in a rule matches a link.
func matches(link string) func(string) bool {
	return func(name string) bool {
		prefix, all := strings.CutSuffix(name, "*")
		return name == link || all && strings.HasPrefix(link, prefix)
	}
}

// maxJumps is the largest number of jumps that are followed.
const maxJumps = 4

// A walk follows the rules of a chain up to one that decides about all packets.
type walk struct {
	*reader
	rules []installedRule
	Blocker
	drops []Blocker // of rules, each with what the chain accepts before it
}

// chain reads the rules of a chain, and of chains to which it jumps unconditionally. Links in sets,
// and rules with other conditions, are ignored. all: the chain decides about all packets; drop: it
// drops them.
func (w *walk) chain(name string, jumps int) (all, drop bool) {
	for i := range w.rules {
		r := &w.rules[i]
		if r.chain != name {
			continue
		}
		d := w.ruling(r)
		switch {
		case !d.decides:
		case d.chain != "":
			w.Asks = w.Asks || d.chain == filterChain
			if d.chain != filterChain && d.unconditional() && jumps > 0 {
				if all, drop := w.chain(d.chain, jumps-1); all {
					return all, drop
				}
				if d.verdict == expr.VerdictGoto {
					return false, false
				}
			}
		case d.unconditional() && d.verdict == expr.VerdictReturn:
			return false, false
		case d.unconditional():
			return true, d.verdict == expr.VerdictDrop
		case d.sure && d.proto == 0 && d.ports == nil:
			w.some(r, d)
		}
	}
	return false, false
}

// some records a rule about the packets of a link, or of some addresses.
func (w *walk) some(r *installedRule, d *ruling) {
	addrs := d.src.IsValid() || d.dst.IsValid()
	switch {
	case d.verdict == expr.VerdictAccept && !addrs && d.in != "" && d.out != "":
		w.pairs = append(w.pairs, [2]string{d.in, d.out})
	case d.verdict == expr.VerdictAccept && !addrs && d.in != "":
		w.in = append(w.in, d.in)
	case d.verdict == expr.VerdictAccept && !addrs && d.out != "":
		w.out = append(w.out, d.out)
	case d.verdict == expr.VerdictDrop && d.conditions() == 1:
		b := w.Blocker // the copy does not see what is appended to its lists later
		b.Rule = &Drop{r.chain, r.handle, d.in, d.out, d.src, d.dst}
		w.drops = append(w.drops, b)
	}
}

// conditions returns the number of links and addresses that the rule matches.
func (d *ruling) conditions() (n int) {
	for _, given := range []bool{d.in != "", d.out != "", d.src.IsValid(), d.dst.IsValid()} {
		if given {
			n++
		}
	}
	return n
}

// verdict returns the verdict of an immediate expression.
func (e *expression) verdict() expr.VerdictKind {
	return expr.VerdictKind(int32(num(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)))
}

// familyNames are the families whose chains see forwarded packets.
var familyNames = [...]struct {
	family byte
	name   string
}{{inet, "inet"}, {v4, "ip"}, {v6, "ip6"}}

// A baseChain is a chain of another program at a hook.
type baseChain struct {
	table, name string
	typ         string
	priority    int
	drops       bool // its policy
}

// baseChains lists the base chains of a family at a hook, in the order of evaluation.
func (s *sock) baseChains(family byte, hook uint64) (all []baseChain, err error) {
	err = s.dump(unix.NFT_MSG_GETCHAIN, family, func(_ byte, data []byte) {
		hookAttr := nlconn.Attribute(data, unix.NFTA_CHAIN_HOOK)
		c := baseChain{table: text(data, unix.NFTA_CHAIN_TABLE), name: text(data, unix.NFTA_CHAIN_NAME), typ: text(data, unix.NFTA_CHAIN_TYPE)}
		if hookAttr == nil || num(hookAttr, unix.NFTA_HOOK_HOOKNUM) != hook || c.table == TableName {
			return
		}
		c.priority = int(int32(num(hookAttr, unix.NFTA_HOOK_PRIORITY)))
		c.drops = num(data, unix.NFTA_CHAIN_POLICY) == uint64(expr.VerdictDrop)
		all = append(all, c)
	})
	slices.SortStableFunc(all, func(a, b baseChain) int { return a.priority - b.priority })
	return all, err
}

// Blockers lists the chains of other programs that drop forwarded packets. It takes no lock.
func (t *Table) Blockers() (all []Blocker, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for _, f := range familyNames {
		chains, err := s.baseChains(f.family, unix.NF_INET_FORWARD)
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			if c.typ != "filter" {
				continue
			}
			rules, err := s.rulesOf(f.family, c.table, "")
			if err != nil {
				return nil, err
			}
			w := &walk{reader: &reader{s, f.family, c.table}, rules: rules, Blocker: Blocker{Family: f.name, Table: c.table, Chain: c.name}}
			decided, drop := w.chain(c.name, maxJumps)
			if !decided {
				drop = c.drops
			}
			if all = append(all, w.drops...); drop {
				all = append(all, w.Blocker)
			}
		}
	}
	return all, nil
}

// An Answer is a rule of another program that decides about packets to a port of this host before
// our chain does.
type Answer struct {
	Family, Table string
	Base          string // the base chain at the hook prerouting
	Priority      int    // the base chain's
	Chain         string // that has the rule
	Handle        uint64
	In            string // incoming link; empty: any
	Text          string // the statement: "drop", "dnat to 10.0.0.2:80"
	To            netip.AddrPort
}

// A Prerouting has the rules of other programs that packets pass at the hook prerouting before
// ours.
type Prerouting struct {
	chains []*answering
}

// An answering is a base chain with the rules of its table.
type answering struct {
	baseChain
	family  byte
	name    string // of the family
	rulings map[string][]*ruled
}

// A ruled is a rule with its decoded conditions and verdict.
type ruled struct {
	*ruling
	handle uint64
}

// Prerouting reads the rules of other programs at the hook prerouting. It takes no lock.
func (t *Table) Prerouting() (p *Prerouting, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	p = &Prerouting{}
	for _, f := range familyNames {
		chains, err := s.baseChains(f.family, unix.NF_INET_PRE_ROUTING)
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			if c.priority >= dnatPrio {
				continue
			}
			rules, err := s.rulesOf(f.family, c.table, "")
			if err != nil {
				return nil, err
			}
			a := &answering{baseChain: c, family: f.family, name: f.name, rulings: map[string][]*ruled{}}
			from := &reader{s, f.family, c.table}
			for i := range rules {
				a.rulings[rules[i].chain] = append(a.rulings[rules[i].chain], &ruled{from.ruling(&rules[i]), rules[i].handle})
			}
			p.chains = append(p.chains, a)
		}
	}
	slices.SortStableFunc(p.chains, func(a, b *answering) int { return a.priority - b.priority })
	return p, nil
}

// Before returns a rule that certainly decides about a port before our rules; nil: none. A zero
// host address means any address of the target's family.
func (p *Prerouting) Before(proto uint8, host netip.Addr, port uint16, target netip.Addr) *Answer {
	family := familyOf(target)
	for _, c := range p.chains {
		if c.family != inet && c.family != family {
			continue
		}
		asked := &ruling{family: family, proto: proto, ports: [][2]uint16{{port, port}}}
		if host.IsValid() && !host.IsUnspecified() {
			asked.dst = netip.PrefixFrom(host, host.BitLen())
		}
		if r, chain, _ := c.answer(c.baseChain.name, asked, &ruling{}, maxJumps); r != nil {
			a := &Answer{Family: c.name, Table: c.table, Base: c.baseChain.name, Priority: c.priority, Chain: chain, Handle: r.handle, In: r.in, Text: "drop"}
			if r.to.what != "" {
				a.Text, a.To = r.to.String(), netip.AddrPortFrom(r.to.addr, r.to.port)
			}
			return a
		}
	}
	return nil
}

// answer searches a chain for the rule, under the conditions of the rules that jumped to it. done
// reports whether the packets pass no other rule of the base chain.
func (c *answering) answer(chain string, asked, under *ruling, jumps int) (found *ruled, link string, done bool) {
	for _, r := range c.rulings[chain] {
		if !r.sure || !r.decides || !r.matches(asked) {
			continue
		}
		combined := &ruling{proto: max(under.proto, r.proto), ports: under.ports, in: under.in}
		if r.ports != nil {
			combined.ports = r.ports
		}
		if r.in != "" {
			combined.in = r.in
		}
		switch r.verdict {
		case expr.VerdictJump, expr.VerdictGoto:
			if jumps > 0 {
				if found, link, done := c.answer(r.chain, asked, combined, jumps-1); found != nil || done {
					return found, link, done
				}
			}
			if r.verdict == expr.VerdictGoto && combined.in == "" {
				return nil, "", false
			}
		case expr.VerdictReturn:
			if combined.in == "" {
				return nil, "", false
			}
		default:
			if (r.verdict == expr.VerdictDrop || r.to.what != "") && combined.proto != 0 && combined.ports != nil {
				answer := &ruled{new(*r.ruling), r.handle}
				answer.in = combined.in
				return answer, chain, true
			}
			if combined.in == "" {
				return nil, "", true
			}
		}
	}
	return nil, "", false
}

// matches reports whether the rule matches all packets to a port, from its incoming link.
func (d *ruling) matches(asked *ruling) bool {
	within := func(p [2]uint16) bool { return p[0] <= asked.ports[0][0] && asked.ports[0][1] <= p[1] }
	return d.out == "" && !d.src.IsValid() &&
		(d.family == 0 || d.family == asked.family) && (d.proto == 0 || d.proto == asked.proto) &&
		(d.ports == nil || slices.ContainsFunc(d.ports, within)) &&
		(!d.dst.IsValid() || asked.dst.IsValid() && d.dst.Contains(asked.dst.Addr()))
}
