package nft

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
	"cnibox/spec"
)

// A Match is one condition of a port map; see [ParseConditions], which alone makes
// them. The list of the field's sort is in use, or for marks mark and mask; one of
// its values must match, or with not, none of them.
type Match struct {
	field  field
	not    bool
	addrs  []netip.Prefix
	ports  []portRange
	names  []string // interfaces; a trailing * stands for anything
	protos []uint8
	mark   uint32
	mask   uint32
}

// A portRange is a range of ports, both ends included.
type portRange struct{ lo, hi uint16 }

// A field is what a condition looks at.
type field int

const (
	fieldSource field = iota
	fieldDestination
	fieldInput
	fieldOutput
	fieldProto
	fieldSourcePort
	fieldDestinationPort
	fieldMark
	fieldConnMark
)

// mostRules bounds what the lists of one configuration may multiply to: each
// combination is a rule, and the first packet of each connection to the port is
// compared with one after the other.
const mostRules = 256

// condGroup returns the chain that asks the conditions of a network's host
// ports. Its name follows from its rules, so networks and mappings with other
// conditions have other chains, and each goes with its last mapping. The error is
// about lists that multiply to more than mostRules.
func condGroup(network string, family byte, host bool, conds []Match) (chain, error) {
	lists := [][]*rule{}
	most := 1
	for i := range conds {
		alternatives := conds[i].rules(family)
		most *= len(alternatives)
		if most > mostRules {
			return chain{}, fmt.Errorf("conditions: their lists make more than %d combinations", mostRules)
		}
		lists = append(lists, alternatives)
	}
	to := condChain(family, host)
	all := []*rule{newRule().family(family)}
	for _, alternatives := range lists {
		var longer []*rule
		for _, r := range all {
			for _, alt := range alternatives {
				b := append(append(netlink.Buf(nil), r.b...), alt.b...)
				longer = append(longer, &rule{b})
			}
		}
		all = longer
	}
	var bytes []byte
	for _, r := range all {
		r.verdict(toGoto, to)
		bytes = append(bytes, r.b...)
	}
	sum := sha512.Sum512(bytes)
	name := "cond-" + spec.NetworkKey(network) + hex.EncodeToString(sum[:8])
	return chain{name: name, needs: ctNeeds, rules: all}, nil
}

// rules returns the expressions of a condition: one of the lists must match. What
// stands in one rule must all hold, so "one of these" takes a rule for each value,
// while "none of these" is a single rule with all of them.
func (m *Match) rules(family byte) (any []*rule) {
	op := uint32(unix.NFT_CMP_EQ)
	if m.not {
		op = unix.NFT_CMP_NEQ
	}
	var each []func(*rule)
	for _, p := range m.addrs {
		each = append(each, func(r *rule) { r.addr(family, m.field == fieldDestination, 0).prefix(op, p) })
	}
	for _, p := range m.ports {
		each = append(each, func(r *rule) { m.port(r, op, p) })
	}
	for _, name := range m.names {
		each = append(each, func(r *rule) { m.iface(r, op, name) })
	}
	for _, p := range m.protos {
		each = append(each, func(r *rule) { r.meta(unix.NFT_META_L4PROTO, 0).cmp(op, 0, []byte{p}) })
	}
	if m.field == fieldMark || m.field == fieldConnMark {
		each = append(each, func(r *rule) { m.marked(r, op) })
	}
	if m.not { // none of the list
		r := newRule()
		for _, fn := range each {
			fn(r)
		}
		return []*rule{r}
	}
	for _, fn := range each {
		r := newRule()
		fn(r)
		any = append(any, r)
	}
	return any
}

// port compares a source or destination port with one range. That the
// packet has ports was found by the map that leads here.
func (m *Match) port(r *rule, op uint32, p portRange) {
	at := uint32(sportAt)
	if m.field == fieldDestinationPort {
		at = dportAt
	}
	r.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, at, portLen, 0)
	if p.lo == p.hi {
		r.cmp(op, 0, port16(p.lo))
		return
	}
	inRange := uint32(unix.NFT_RANGE_EQ)
	if m.not {
		inRange = unix.NFT_RANGE_NEQ
	}
	r.within(inRange, port16(p.lo), port16(p.hi))
}

// iface compares the name of the interface a packet came in or goes out by.
func (m *Match) iface(r *rule, op uint32, name string) {
	key := uint32(unix.NFT_META_IIFNAME)
	if m.field == fieldOutput {
		key = unix.NFT_META_OIFNAME
	}
	r.meta(key, 0).ifname(op, name)
}

// marked compares the packet's or the connection's mark, of which only the bits
// of the mask count. Both are loaded in the machine's order.
func (m *Match) marked(r *rule, op uint32) {
	if m.field == fieldConnMark {
		r.ct(unix.NFT_CT_MARK, 0)
	} else {
		r.meta(unix.NFT_META_MARK, 0)
	}
	if m.mask != ^uint32(0) {
		r.mask(native(m.mask))
	}
	r.cmp(op, 0, native(m.mark))
}
