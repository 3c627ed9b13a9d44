package rtnl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Rule sends packets to a routing table. Zero fields match all packets.
type Rule struct {
	Family   int // unix.AF_INET or unix.AF_INET6; 0: that of Src or Dst, else IPv4
	Src, Dst netip.Prefix
	IIF, OIF string // name of the link that packets come from or leave by
	Mark     uint32 // fwmark, all bits
	Table    int    // 0: main
	Priority int    // lower is asked first; 0: the kernel puts it before all others
}

// NewRule adds a rule, os.ErrExist if there is one like it.
func NewRule(r Rule) Op { return r.op("add", unix.RTM_NEWRULE, create) }

// DropRule deletes the first rule that matches, os.ErrNotExist if there is none.
func DropRule(r Rule) Op { return r.op("delete", unix.RTM_DELRULE, ack) }

func (r Rule) op(verb string, typ, flags uint16) Op {
	r.Family = r.family()
	text := fmt.Sprintf("rule %s priority %d from %s to %s table %d", verb, r.Priority, anyOr(r.Src), anyOr(r.Dst), r.Table)
	if !fits(r.Src, r.Family) || !fits(r.Dst, r.Family) || fit32(r.Table, r.Priority) != nil {
		return Op{text: text, err: unix.EINVAL}
	}
	m := rtnetlink.RuleMessage{Family: uint8(r.Family), Action: unix.FR_ACT_TO_TBL, Attributes: &rtnetlink.RuleAttributes{}}
	at := m.Attributes
	if header, wide := tableFields(r.Table); wide != 0 {
		at.Table = &wide
	} else {
		m.Table = header
	}
	at.Src, m.SrcLength = selector(r.Src)
	at.Dst, m.DstLength = selector(r.Dst)
	if r.Priority != 0 {
		priority := uint32(r.Priority)
		at.Priority = &priority
	}
	if r.Mark != 0 {
		at.FwMark = &r.Mark
	}
	if r.IIF != "" {
		at.IIFName = &r.IIF
	}
	if r.OIF != "" {
		at.OIFName = &r.OIF
	}
	data, err := m.MarshalBinary()
	return newOp(text, typ, flags, data, err)
}

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

// fits reports whether a selector is of the rule's family, or is none.
func fits(p netip.Prefix, of int) bool {
	return !p.IsValid() || int(family(p.Addr())) == of && !p.Addr().Is4In6()
}

// selector returns a prefix as rtnetlink wants it; nil matches all.
func selector(p netip.Prefix) (*net.IP, uint8) {
	if !p.IsValid() || p.Bits() == 0 {
		return nil, 0
	}
	ip := net.IP(p.Masked().Addr().AsSlice())
	return &ip, uint8(p.Bits())
}

func anyOr(p netip.Prefix) string {
	if !p.IsValid() {
		return "all"
	}
	return p.String()
}

// Rules returns the rules of a family, first to last.
func (c *Conn) Rules(of int) ([]Rule, error) {
	data, err := (&rtnetlink.RuleMessage{Family: uint8(of)}).MarshalBinary()
	if err != nil {
		return nil, err
	}
	rules, err := dump(c, request{typ: unix.RTM_GETRULE, data: data}, func(m message) (Rule, bool, error) {
		var r Rule
		err := r.decode(m.data)
		return r, m.typ == unix.RTM_NEWRULE, err
	})
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return rules, nil
}

// fibRuleHeader is the size of struct fib_rule_hdr, include/uapi/linux/fib_rules.h.
const fibRuleHeader = 12

// decode reads an RTM_NEWRULE message. rtnetlink's RuleMessage refuses a rule
// with an attribute that it does not know, such as a newer kernel's.
func (r *Rule) decode(b []byte) error {
	if len(b) < fibRuleHeader {
		return errMalformed
	}
	*r = Rule{Family: int(b[0]), Table: int(b[4])}
	ad, err := netlink.NewAttributeDecoder(b[fibRuleHeader:])
	if err != nil {
		return err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.FRA_SRC:
			r.Src = prefix(ad.Bytes(), b[2])
		case unix.FRA_DST:
			r.Dst = prefix(ad.Bytes(), b[1])
		case unix.FRA_IIFNAME:
			r.IIF = ad.String()
		case unix.FRA_OIFNAME:
			r.OIF = ad.String()
		case unix.FRA_FWMARK:
			r.Mark = ad.Uint32()
		case unix.FRA_TABLE:
			r.Table = int(ad.Uint32())
		case unix.FRA_PRIORITY:
			r.Priority = int(ad.Uint32())
		}
	}
	return ad.Err()
}

// prefix returns the zero prefix for bytes that are no address.
func prefix(b []byte, bits uint8) netip.Prefix {
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, int(bits))
}
