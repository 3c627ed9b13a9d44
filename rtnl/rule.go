package rtnl

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Rule selects a routing table for packets. Zero fields match all packets.
type Rule struct {
	Family   int // unix.AF_INET or unix.AF_INET6; 0: the family of Src or Dst, else IPv4
	Src, Dst netip.Prefix
	IIF, OIF string // name of the incoming, outgoing link
	Mark     uint32 // fwmark, all bits
	Table    int    // 0: main
	Priority int    // lower ones come first; 0: the kernel puts it before all rules but the local table's

	// Reported by the kernel; NewRule ignores both: the rule has other conditions, or another action
	// than a table lookup. Drops is the action of a rule without other conditions that drops packets,
	// unix.FR_ACT_BLACKHOLE and the like.
	More  bool
	Drops uint8
}

// NewRule adds a rule, os.ErrExist if the same rule exists.
func NewRule(r Rule) Op { return r.op("add", unix.RTM_NEWRULE, create) }

// DropRule deletes the first rule that matches, os.ErrNotExist if there is none.
func DropRule(r Rule) Op { return r.op("delete", unix.RTM_DELRULE, ack) }

// op builds the message: FRA_*, include/uapi/linux/fib_rules.h. The error is unix.EINVAL if a
// prefix is not of the rule's family, since the kernel would read its bytes as an address of the
// other family. A missing attribute matches all packets, or in DropRule all rules.
func (r Rule) op(verb string, typ netlink.HeaderType, flags netlink.HeaderFlags) Op {
	r.Family = r.family()
	text := fmt.Sprintf("rule %s priority %d from %s to %s table %d", verb, r.Priority, anyOr(r.Src), anyOr(r.Dst), r.Table)
	if !inFamily(r.Src, r.Family) || !inFamily(r.Dst, r.Family) || check32(r.Table, r.Priority) != nil {
		return Op{text: text, err: unix.EINVAL}
	}
	data, err := (&rtnetlink.RuleMessage{
		Family: uint8(r.Family), DstLength: bits(r.Dst), SrcLength: bits(r.Src),
		Table: tableByte(r.Table), Action: unix.FR_ACT_TO_TBL,
		Attributes: &rtnetlink.RuleAttributes{
			Src: selector(r.Src), Dst: selector(r.Dst), IIFName: given(r.IIF), OIFName: given(r.OIF),
			FwMark: given(r.Mark), Priority: given(uint32(r.Priority)), Table: given(tableAttribute(r.Table)),
		},
	}).MarshalBinary()
	return newOp(text, typ, flags, data, err)
}

// given returns a pointer to v; nil for the zero value.
func given[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// family returns the rule's family, else that of its prefixes. A rule without either is for one
// family: the kernel has a list of rules for each.
func (r Rule) family() int {
	switch {
	case r.Family != 0:
		return r.Family
	case r.Src.IsValid():
		return int(family(r.Src.Addr()))
	case r.Dst.IsValid():
		return int(family(r.Dst.Addr()))
	}
	return unix.AF_INET
}

// inFamily reports whether a selector is empty or of the rule's family.
func inFamily(p netip.Prefix, af int) bool {
	return !p.IsValid() || int(family(p.Addr())) == af && !p.Addr().Is4In6()
}

// bits returns the length of a selector; 0 matches all.
func bits(p netip.Prefix) uint8 { return uint8(max(p.Bits(), 0)) }

// selector returns the network of a prefix; nil if it matches all.
func selector(p netip.Prefix) *net.IP {
	if p.Bits() <= 0 {
		return nil
	}
	return new(ip(p.Masked().Addr()))
}

// anyOr formats a selector as ip(8) does: an empty one is "all".
func anyOr(p netip.Prefix) string {
	if !p.IsValid() {
		return "all"
	}
	return p.String()
}

// Rules returns the rules of a family (unix.AF_INET, unix.AF_INET6), in the order of evaluation.
func (c *Conn) Rules(af int) ([]Rule, error) {
	fail := func(err error) ([]Rule, error) { return nil, fmt.Errorf("rules: %w", err) }
	data, err := (&rtnetlink.RuleMessage{Family: uint8(af)}).MarshalBinary()
	if err != nil {
		return fail(err)
	}
	ms, err := c.dump(request(unix.RTM_GETRULE, 0, data))
	if err != nil {
		return fail(err)
	}
	var rules []Rule
	for _, m := range ms {
		var r Rule
		if err := r.decode(m.Data); err != nil {
			return fail(err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// fibRuleHeader is the size of struct fib_rule_hdr, include/uapi/linux/fib_rules.h.
const fibRuleHeader = 12

// decode decodes an RTM_NEWRULE message. The library stops at an attribute that is newer than
// itself; such a rule has more conditions.
func (r *Rule) decode(b []byte) error {
	var m rtnetlink.RuleMessage
	err := m.UnmarshalBinary(b)
	if len(b) < fibRuleHeader {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	attrs := cmp.Or(m.Attributes, &rtnetlink.RuleAttributes{})
	*r = Rule{
		Family: int(m.Family), Src: prefix(attrs.Src, m.SrcLength), Dst: prefix(attrs.Dst, m.DstLength),
		IIF: deref(attrs.IIFName), OIF: deref(attrs.OIFName), Mark: deref(attrs.FwMark),
		Table: int(cmp.Or(deref(attrs.Table), uint32(m.Table))), Priority: int(deref(attrs.Priority)),
	}
	more := err != nil || m.TOS != 0 || m.Flags&unix.FIB_RULE_INVERT != 0 ||
		attrs.SuppressPrefixLen != nil && *attrs.SuppressPrefixLen != math.MaxUint32 || // -1: not set
		attrs.Goto != nil || attrs.SrcRealm != nil || attrs.TunID != nil || attrs.L3MDev != nil || attrs.IPProto != nil ||
		attrs.SuppressIFGroup != nil || attrs.UIDRange != nil || attrs.SPortRange != nil || attrs.DPortRange != nil
	r.More = more || m.Action != unix.FR_ACT_TO_TBL
	if !more && dropAction(m.Action) != "" {
		r.Drops = m.Action
	}
	return nil
}

// prefix returns the zero prefix if there is no address.
func prefix(a *net.IP, bits uint8) netip.Prefix {
	return netip.PrefixFrom(addr(deref(a)), int(bits))
}
