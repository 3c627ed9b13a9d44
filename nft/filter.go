package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// The reference plugin makes these in the tables "ip filter" and "ip6 filter" of iptables-nft, and
// so do we: where FORWARD drops, only a rule of that chain accepts a packet, and its policy may
// change to drop at any time after ADD. Table and chains stay after the last container, as those of
// the reference do.
const (
	filterTable  = "filter"
	filterHook   = "FORWARD"
	filterChain  = "CNI-FORWARD"
	filterNeeds  = `CONFIG_NFT_COMPAT, or CONFIG_NETFILTER_XT_MATCH_CONNTRACK, or CONFIG_NETFILTER_XT_MATCH_COMMENT, which "backend": "nftables" does without`
	hookComment  = "CNI firewall plugin rules"
	adminComment = "CNI firewall plugin admin overrides"
)

// States of a connection as a bit mask of xt_conntrack: XT_CONNTRACK_STATE_*,
// include/uapi/linux/netfilter/xt_conntrack.h.
const (
	answerStates uint16 = 1<<2 | 1<<1 // RELATED, ESTABLISHED
	dnatState    uint16 = 1 << 7      // DNAT: the destination was translated
	nativeStates uint16 = 1<<16 - 1   // matched in nft's own syntax, which is not parsed
)

// Byte offsets of the used fields of struct xt_conntrack_mtinfo3, in host byte order.
const (
	conntrackLen   = 164
	matchFlagsAt   = 146 // followed by the flags of the inverted matches
	stateMaskAt    = 150
	byState        = 1 << 0 // XT_CONNTRACK_STATE
	conntrackRev   = 3
	commentInfoLen = 256 // struct xt_comment_info, include/uapi/linux/netfilter/xt_comment.h
)

// An acceptRule is a rule of CNI-FORWARD that accepts packets to or from one address.
type acceptRule struct {
	ip     netip.Addr
	dst    bool
	states uint16 // of the connection; 0: any
}

// acceptRules returns the rules of an address. The reference does not have the third one, which
// accepts packets that published ports send here: without it they depend on the policy of FORWARD.
func acceptRules(ip netip.Addr) []acceptRule {
	return []acceptRule{{ip, true, answerStates}, {ip, false, 0}, {ip, true, dnatState}}
}

// String formats the rule in the syntax of iptables.
func (p acceptRule) String() string {
	switch {
	case !p.dst:
		return fmt.Sprintf("-s %s -j ACCEPT", p.ip)
	case p.states == dnatState:
		return fmt.Sprintf("-d %s -m conntrack --ctstate DNAT -j ACCEPT", p.ip)
	}
	return fmt.Sprintf("-d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", p.ip)
}

// rule returns the rule in the form of iptables-nft, which lists no other form.
func (p acceptRule) rule() rule {
	r := rule{}.addr(familyOf(p.ip), p.dst).equal(p.ip.AsSlice()...)
	if p.states != 0 {
		info := make([]byte, conntrackLen)
		binary.NativeEndian.PutUint16(info[matchFlagsAt:], byState)
		binary.NativeEndian.PutUint16(info[stateMaskAt:], p.states)
		r = r.match("conntrack", conntrackRev, info)
	}
	return r.counter().accept()
}

// commentedJump returns a rule that jumps and has a comment of iptables.
func commentedJump(text, to string) rule {
	info := make([]byte, commentInfoLen)
	copy(info, text)
	return rule{}.match("comment", 0, info).counter().jump(to)
}

// jumps reports whether a rule is what commentedJump returns, without another condition.
func (r *installedRule) jumps(text, to string) bool {
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

// acceptRule parses a rule for one address; false for every other rule.
func (r *installedRule) acceptRule() (p acceptRule, ok bool) {
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
			v := nlconn.Attribute(e.data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
			ok = ok && !p.ip.IsValid() && num(e.data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ && len(v) == int(addrLen(r.family))
			p.ip = addrOf(v, r.family)
		case "ct", "bitwise":
			p.states = nativeStates
		case "match":
			p.states, ok = conntrackStates(e.data)
		case "counter":
			continue
		case "immediate":
			code := num(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
			return p, p.ip.IsValid() && p.dst == (p.states != 0) && code == uint64(expr.VerdictAccept)
		default:
			return p, false
		}
		if !ok {
			return p, false
		}
	}
	return p, false
}

// addressField reports whether a payload is the destination or the source address; false for any
// other field of a packet.
func addressField(family byte, d []byte) (dst, ok bool) {
	if num(d, unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || num(d, unix.NFTA_PAYLOAD_LEN) != uint64(addrLen(family)) {
		return false, false
	}
	offset := num(d, unix.NFTA_PAYLOAD_OFFSET)
	if family == v6 {
		return offset == daddr6At, offset == daddr6At || offset == saddr6At
	}
	return offset == daddr4At, offset == daddr4At || offset == saddr4At
}

// conntrackStates parses a match for states of a connection; false if it has other conditions.
func conntrackStates(d []byte) (states uint16, ok bool) {
	info := nlconn.Attribute(d, unix.NFTA_MATCH_INFO)
	if text(d, unix.NFTA_MATCH_NAME) != "conntrack" || len(info) < conntrackLen {
		return 0, false
	}
	return binary.NativeEndian.Uint16(info[stateMaskAt:]), binary.NativeEndian.Uint16(info[matchFlagsAt:]) == byState && binary.NativeEndian.Uint16(info[matchFlagsAt+2:]) == 0
}
