package nft

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

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
	lists := [][]rule{}
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
	all := []rule{rule{}.family(family)}
	for _, alternatives := range lists {
		var longer []rule
		for _, r := range all {
			for _, alt := range alternatives {
				longer = append(longer, slices.Concat(r, alt))
			}
		}
		all = longer
	}
	var bytes []byte
	for i, r := range all {
		all[i] = append(r, &expr.Verdict{Kind: expr.VerdictGoto, Chain: to})
		bytes = append(bytes, all[i].list()...)
	}
	sum := sha512.Sum512(bytes)
	name := "cond-" + spec.NetworkKey(network) + hex.EncodeToString(sum[:8])
	return chain{name: name, needs: ctNeeds, rules: all}, nil
}

// rules returns the expressions of a condition: one of the lists must match. What
// stands in one rule must all hold, so "one of these" takes a rule for each value,
// while "none of these" is a single rule with all of them.
func (m *Match) rules(family byte) (any []rule) {
	op := expr.CmpOpEq
	if m.not {
		op = expr.CmpOpNeq
	}
	var each []rule
	for _, p := range m.addrs {
		each = append(each, rule{}.addr(family, m.field == fieldDestination).inside(op, p))
	}
	for _, p := range m.ports {
		each = append(each, m.port(op, p))
	}
	for _, name := range m.names {
		key := expr.MetaKeyIIFNAME
		if m.field == fieldOutput {
			key = expr.MetaKeyOIFNAME
		}
		each = append(each, rule{}.meta(key, 0).ifname(op, name))
	}
	for _, p := range m.protos {
		each = append(each, rule{}.meta(expr.MetaKeyL4PROTO, 0).cmp(op, []byte{p}))
	}
	if m.field == fieldMark || m.field == fieldConnMark {
		each = append(each, m.marked(op))
	}
	if m.not { // none of the list
		return []rule{slices.Concat(each...)}
	}
	return each
}

// port compares a source or destination port with one range. That the
// packet has ports was found by the map that leads here.
func (m *Match) port(op expr.CmpOp, p portRange) rule {
	at := uint32(sportAt)
	if m.field == fieldDestinationPort {
		at = dportAt
	}
	r := rule{}.payload(expr.PayloadBaseTransportHeader, at, portLen, 0)
	if p.lo == p.hi {
		return r.cmp(op, port16(p.lo))
	}
	return append(r, &expr.Range{Op: op, Register: reg, FromData: port16(p.lo), ToData: port16(p.hi)})
}

// marked compares the packet's or the connection's mark, of which only the bits
// of the mask count. Both are loaded in the machine's order.
func (m *Match) marked(op expr.CmpOp) rule {
	r := rule{}.meta(expr.MetaKeyMARK, 0)
	if m.field == fieldConnMark {
		r = rule{}.ct(expr.CtKeyMARK)
	}
	if m.mask != ^uint32(0) {
		r = r.mask(native(m.mask))
	}
	return r.cmp(op, native(m.mark))
}
