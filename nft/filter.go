package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// What the reference plugin makes in the tables "ip filter" and "ip6 filter" of
// iptables-nft, and we with it: where another table drops what is forwarded, only
// a rule in that very chain lets it pass. Chains are shared with attachments of
// the reference, so they stay for good.
const (
	filterTable  = "filter"
	filterHook   = "FORWARD"
	filterChain  = "CNI-FORWARD"
	filterNeeds  = "CONFIG_NFT_COMPAT, or CONFIG_NETFILTER_XT_MATCH_CONNTRACK, or CONFIG_NETFILTER_XT_MATCH_COMMENT"
	hookComment  = "CNI firewall plugin rules"
	adminComment = "CNI firewall plugin admin overrides"
)

// States of a connection as a bit mask of xt_conntrack: XT_CONNTRACK_STATE_*,
// include/uapi/linux/netfilter/xt_conntrack.h.
const (
	answerStates uint16 = 1<<2 | 1<<1 // RELATED, ESTABLISHED
	dnatState    uint16 = 1 << 7      // DNAT: the destination was translated
	nativeStates uint16 = 1<<16 - 1   // asked for in nft's own words; which is not read
)

// Where struct xt_conntrack_mtinfo3 has what is used of it, in bytes, in the
// machine's order.
const (
	conntrackLen   = 164
	matchFlagsAt   = 146 // followed by the flags of what is inverted
	stateMaskAt    = 150
	byState        = 1 << 0 // XT_CONNTRACK_STATE
	conntrackRev   = 3
	commentInfoLen = 256 // struct xt_comment_info, include/uapi/linux/netfilter/xt_comment.h
)

// A passRule is a rule of CNI-FORWARD for one address: it accepts what goes there
// or comes from there.
type passRule struct {
	ip     netip.Addr
	dst    bool
	states uint16 // of the connection; 0: any
}

// passRules returns what an address gets. The third one is not the reference's:
// it accepts what published ports lead here, which else depends on the policy
// of FORWARD.
func passRules(ip netip.Addr) []passRule {
	return []passRule{{ip, true, answerStates}, {ip, false, 0}, {ip, true, dnatState}}
}

// String is the rule in the words of iptables.
func (p passRule) String() string {
	switch {
	case !p.dst:
		return fmt.Sprintf("-s %s -j ACCEPT", p.ip)
	case p.states == dnatState:
		return fmt.Sprintf("-d %s -m conntrack --ctstate DNAT -j ACCEPT", p.ip)
	}
	return fmt.Sprintf("-d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", p.ip)
}

// rule encodes the rule as iptables-nft does, which lists no other form.
func (p passRule) rule() *rule {
	family := familyOf(p.ip)
	r := newRule().addr(family, p.dst, 0).cmp(unix.NFT_CMP_EQ, 0, p.ip.AsSlice())
	if p.states != 0 {
		info := make([]byte, conntrackLen)
		ne.PutUint16(info[matchFlagsAt:], byState)
		ne.PutUint16(info[stateMaskAt:], p.states)
		r.match("conntrack", conntrackRev, info)
	}
	return r.expr("counter", nil).verdict(accept, "")
}

// match appends a match of x_tables, whose data the kernel wants in full length.
func (r *rule) match(name string, revision uint32, info []byte) *rule {
	return r.expr("match", func(b *netlink.Buf) {
		b.Text(unix.NFTA_MATCH_NAME, name)
		b.Net32(unix.NFTA_MATCH_REV, revision)
		b.Bytes(unix.NFTA_MATCH_INFO, info)
	})
}

// commentedJump is a rule that jumps and has a comment of iptables.
func commentedJump(text, to string) *rule {
	info := make([]byte, commentInfoLen)
	copy(info, text)
	return newRule().match("comment", 0, info).expr("counter", nil).verdict(toJump, to)
}

// jumps reports whether a rule is what commentedJump makes, with nothing else that
// must match.
func (r *listed) jumps(text, to string) bool {
	for _, e := range expressions(r.exprs) {
		switch e.name {
		case "counter", "immediate":
		case "match":
			if r.xtComment() != text {
				return false
			}
		default:
			return false
		}
	}
	return r.jump() == to
}

// passRule reads a rule for one address; false for every other rule.
func (r *listed) passRule() (p passRule, ok bool) {
	for _, e := range expressions(r.exprs) {
		switch e.name {
		case "payload":
			if p.ip.IsValid() {
				return p, false
			}
			p.dst, ok = addressField(r.family, e.data)
		case "cmp":
			if p.ip.IsValid() && p.states == nativeStates {
				continue
			}
			v := netlink.Attr(netlink.Attr(e.data, unix.NFTA_CMP_DATA), dataValue)
			ok = ok && !p.ip.IsValid() && num(e.data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ && len(v) == int(addrLen(r.family))
			p.ip = addrOf(v, r.family)
		case "ct", "bitwise":
			p.states = nativeStates
		case "match":
			p.states, ok = conntrackStates(e.data)
		case "counter":
			continue
		case "immediate":
			verdict := netlink.Attr(netlink.Attr(e.data, unix.NFTA_IMMEDIATE_DATA), dataVerdict)
			return p, p.ip.IsValid() && p.dst == (p.states != 0) && num(verdict, unix.NFTA_VERDICT_CODE) == accept
		default:
			return p, false
		}
		if !ok {
			return p, false
		}
	}
	return p, false
}

// addressField tells the destination address from the source address; false for any
// other field of a packet.
func addressField(family byte, d []byte) (dst, ok bool) {
	if num(d, unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || num(d, unix.NFTA_PAYLOAD_LEN) != uint64(addrLen(family)) {
		return false, false
	}
	at := num(d, unix.NFTA_PAYLOAD_OFFSET)
	if family == v6 {
		return at == daddr6At, at == daddr6At || at == saddr6At
	}
	return at == daddr4At, at == daddr4At || at == saddr4At
}

// conntrackStates reads a match that asks for states of a connection and nothing else.
func conntrackStates(d []byte) (states uint16, ok bool) {
	info := netlink.Attr(d, unix.NFTA_MATCH_INFO)
	if netlink.Text(netlink.Attr(d, unix.NFTA_MATCH_NAME)) != "conntrack" || len(info) < conntrackLen {
		return 0, false
	}
	return ne.Uint16(info[stateMaskAt:]), ne.Uint16(info[matchFlagsAt:]) == byState && ne.Uint16(info[matchFlagsAt+2:]) == 0
}

// A filterPlan is what the table filter of one family lacks, and what is to go.
type filterPlan struct {
	family  byte
	there   bool       // FORWARD is
	apart   bool       // FORWARD leads to the reference's policies of bridges
	chains  []string   // to be made
	hook    bool       // FORWARD does not lead to CNI-FORWARD
	admins  []string   // chains that CNI-FORWARD does not lead to
	missing []passRule // of CNI-FORWARD
	gone    []listed   // rules of CNI-FORWARD
}

// filters plans the tables filter for the addresses that the update allows or
// releases. Without a chain FORWARD, which is on most hosts without Docker or kube-proxy,
// nothing is made.
func (x *Tx) filters() (plans []*filterPlan, err error) {
	for _, family := range []byte{v4, v6} {
		var allowed, gone []netip.Addr
		var admins []string
		in, next := allowAddrs.sets(family)
		for _, sl := range x.slots {
			switch {
			case sl.set == in && sl.is == nil && sl.was != nil:
				gone = append(gone, in.addr(sl.key))
			case (sl.set == in || sl.set == next) && sl.claimed:
				allowed = append(allowed, in.addr(sl.key))
				if name := strings.TrimPrefix(sl.is.chain, adminPrefix); !slices.Contains(admins, name) {
					admins = append(admins, name)
				}
			}
		}
		for _, ip := range x.oldIPs {
			if familyOf(ip) == family && x.free(ip) {
				gone = append(gone, ip)
			}
		}
		p := &filterPlan{family: family}
		if err := p.read(x.s, allowed, gone, admins); err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	return plans, x.err
}

// read compares what shall be with what the kernel has.
func (p *filterPlan) read(s *sock, allowed, gone []netip.Addr, admins []string) error {
	if len(allowed) > 0 {
		ok, _, err := s.chainAt(chainID{p.family, filterTable, filterHook})
		if err != nil {
			return err
		}
		if p.there = ok; !ok {
			allowed = nil
		}
	}
	if len(allowed) == 0 && len(gone) == 0 {
		return nil
	}
	rules, err := s.rulesOf(p.family, filterTable, filterChain)
	if err != nil {
		return err
	}
	for _, ip := range allowed {
		p.missing = append(p.missing, passRules(ip)...)
	}
	for i := range rules {
		r, ok := rules[i].passRule()
		if !ok {
			continue
		}
		if slices.Contains(gone, r.ip) {
			p.gone = append(p.gone, rules[i])
			continue
		}
		p.missing = slices.DeleteFunc(p.missing, func(m passRule) bool { return m == r })
	}
	if len(allowed) == 0 {
		return nil
	}
	for _, name := range admins {
		if !slices.ContainsFunc(rules, func(r listed) bool { return r.jumps(adminComment, name) }) {
			p.admins = append(p.admins, name)
		}
	}
	if err := p.readChains(s, len(rules) == 0); err != nil {
		return err
	}
	rules, err = s.rulesOf(p.family, filterTable, filterHook)
	p.hook = !slices.ContainsFunc(rules, func(r listed) bool { return r.jumps(hookComment, filterChain) })
	p.apart = slices.ContainsFunc(rules, func(r listed) bool { return r.jump() == "CNI-ISOLATION-STAGE-1" })
	return err
}

// readChains finds out which chains are to be made. To make one again that is there
// does nothing, but for 10 ms that the kernel takes until no packet can see
// the old one. A chain with rules, or one that is jumped to, is there.
func (p *filterPlan) readChains(s *sock, empty bool) error {
	names := p.admins
	if empty {
		names = append([]string{filterChain}, names...)
	}
	for _, name := range names {
		ok, _, err := s.chainAt(chainID{p.family, filterTable, name})
		if err != nil {
			return err
		}
		if !ok {
			p.chains = append(p.chains, name)
		}
	}
	return nil
}

// change adds what is missing and removes what is to go. The jumps come first in
// their chains, as the reference puts them.
func (p *filterPlan) change(b *batch) {
	(&leftovers{rules: p.gone}).remove(b)
	for _, name := range p.chains {
		p.makeChain(b, name)
	}
	for _, name := range p.admins {
		p.makeRule(b, filterChain, 0, commentedJump(adminComment, name))
	}
	if p.hook {
		p.makeRule(b, filterHook, 0, commentedJump(hookComment, filterChain))
	}
	for _, m := range p.missing {
		p.makeRule(b, filterChain, unix.NLM_F_APPEND, m.rule())
	}
}

// makeChain makes a chain that packets are to be led to.
func (p *filterPlan) makeChain(b *batch, name string) {
	b.add(step{"chain " + name + " of " + p.table(), noNeeds}, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, p.family, func(b *netlink.Buf) {
		b.Text(unix.NFTA_CHAIN_TABLE, filterTable)
		b.Text(unix.NFTA_CHAIN_NAME, name)
	})
}

// makeRule puts a rule at the end of a chain with NLM_F_APPEND, else at its beginning.
func (p *filterPlan) makeRule(b *batch, chain string, flags uint16, r *rule) {
	b.add(step{"rule of chain " + chain + " of " + p.table(), filterNeeds}, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|flags, p.family, func(b *netlink.Buf) {
		b.Text(unix.NFTA_RULE_TABLE, filterTable)
		b.Text(unix.NFTA_RULE_CHAIN, chain)
		b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { *b = append(*b, r.b...) })
	})
}

// table names the table for people.
func (p *filterPlan) table() string {
	return "table " + tableName(chainID{family: p.family, table: filterTable})
}

// lacks says what CHECK finds missing, in the words of iptables.
func (p *filterPlan) lacks() (words []string) {
	if p.hook {
		words = append(words, fmt.Sprintf("rule -j %s of chain %s of %s", filterChain, filterHook, p.table()))
	}
	for _, name := range p.admins {
		words = append(words, fmt.Sprintf("rule -j %s of chain %s of %s", name, filterChain, p.table()))
	}
	for _, m := range p.missing {
		words = append(words, fmt.Sprintf("rule %s of chain %s of %s", m, filterChain, p.table()))
	}
	return words
}
