package rtnl

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// A Rule sends packets to a routing table. Zero fields match all packets.
type Rule struct {
	Family   int // unix.AF_INET or unix.AF_INET6; 0: that of Src or Dst, else IPv4
	Src, Dst netip.Prefix
	IIF, OIF string // name of the link that packets come from or leave by
	Mark     uint32 // fwmark, all bits
	Table    int    // 0: main
	Priority int    // lower is asked first; 0: the kernel puts it before all but the local table's

	// What the kernel tells, not asked for in NewRule: it asks for more than the above,
	// or does something else than look into the table.
	More bool
}

// NewRule adds a rule, os.ErrExist if there is one like it.
func NewRule(r Rule) Op { return r.op("add", unix.RTM_NEWRULE, create) }

// DropRule deletes the first rule that matches, os.ErrNotExist if there is none.
func DropRule(r Rule) Op { return r.op("delete", unix.RTM_DELRULE, ack) }

// op builds the message: struct fib_rule_hdr and FRA_*, include/uapi/linux/fib_rules.h.
// It is unix.EINVAL if a prefix is not of the rule's family, whose bytes
// the kernel would read as an address of the other.
func (r Rule) op(verb string, typ, flags uint16) Op {
	r.Family = r.family()
	text := fmt.Sprintf("rule %s priority %d from %s to %s table %d", verb, r.Priority, anyOr(r.Src), anyOr(r.Dst), r.Table)
	if !fits(r.Src, r.Family) || !fits(r.Dst, r.Family) || fit32(r.Table, r.Priority) != nil {
		return Op{text: text, err: unix.EINVAL}
	}
	h := routeHeader{
		family: uint8(r.Family), dstBits: bits(r.Dst), srcBits: bits(r.Src),
		table: tableByte(r.Table), typ: unix.FR_ACT_TO_TBL,
	}
	data := encode(h.encode(), func(b *netlink.Buf) {
		selector(b, unix.FRA_SRC, r.Src)
		selector(b, unix.FRA_DST, r.Dst)
		r.attributes(b)
	})
	return newOp(text, typ, flags, data, nil)
}

// attributes writes what a rule asks beside the prefixes; what is not written
// matches all packets, or in DropRule all rules.
func (r Rule) attributes(b *netlink.Buf) {
	tableAttribute(b, unix.FRA_TABLE, r.Table)
	if r.Priority != 0 {
		b.U32(unix.FRA_PRIORITY, uint32(r.Priority))
	}
	if r.Mark != 0 {
		b.U32(unix.FRA_FWMARK, r.Mark)
	}
	if r.IIF != "" {
		b.Text(unix.FRA_IIFNAME, r.IIF)
	}
	if r.OIF != "" {
		b.Text(unix.FRA_OIFNAME, r.OIF)
	}
}

// family is what the rule says, else what its prefixes are. A rule without any
// is for one family all the same: the kernel keeps a list for each.
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

// bits returns the length of a selector; 0 matches all.
func bits(p netip.Prefix) uint8 { return uint8(max(p.Bits(), 0)) }

// selector writes the network of a prefix, unless it matches all.
func selector(b *netlink.Buf, typ uint16, p netip.Prefix) {
	if p.Bits() > 0 {
		b.Bytes(typ, p.Masked().Addr().AsSlice())
	}
}

// anyOr writes a selector as ip(8) does, for which none is "all".
func anyOr(p netip.Prefix) string {
	if !p.IsValid() {
		return "all"
	}
	return p.String()
}

// Rules returns the rules of a family (unix.AF_INET, unix.AF_INET6), in the order
// in which they are asked.
func (c *Conn) Rules(of int) ([]Rule, error) {
	r := netlink.Request{Type: unix.RTM_GETRULE, Data: make([]byte, fibRuleHeader)}
	r.Data[0] = uint8(of)
	var rules []Rule
	err := c.dump(r, func(m netlink.Message) error {
		var r Rule
		if err := r.decode(m.Data); err != nil || m.Type != unix.RTM_NEWRULE {
			return err
		}
		rules = append(rules, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return rules, nil
}

// fibRuleHeader is the size of struct fib_rule_hdr, include/uapi/linux/fib_rules.h.
const fibRuleHeader = 12

// decode reads an RTM_NEWRULE message.
func (r *Rule) decode(b []byte) error {
	if len(b) < fibRuleHeader {
		return errMalformed
	}
	const inverted = unix.FIB_RULE_INVERT
	*r = Rule{Family: int(b[0]), Table: int(b[4]),
		More: b[3] != 0 || b[7] != unix.FR_ACT_TO_TBL || binary.NativeEndian.Uint32(b[8:])&inverted != 0}
	for a := netlink.Attrs(b[fibRuleHeader:]); a.Next(); {
		typ, v := a.Type, a.Value
		switch typ {
		case unix.FRA_SRC:
			r.Src = prefix(v, b[2])
		case unix.FRA_DST:
			r.Dst = prefix(v, b[1])
		case unix.FRA_IIFNAME:
			r.IIF = netlink.Text(v)
		case unix.FRA_OIFNAME:
			r.OIF = netlink.Text(v)
		case unix.FRA_FWMARK:
			r.Mark = netlink.Number(v)
		case unix.FRA_TABLE:
			r.Table = int(netlink.Number(v))
		case unix.FRA_PRIORITY:
			r.Priority = int(netlink.Number(v))
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.More = r.More || netlink.Number(v) != math.MaxUint32 // which is none
		case unix.FRA_FWMASK, unix.FRA_PROTOCOL:
		default:
			r.More = true
		}
	}
	return nil
}

// prefix returns the zero prefix for bytes that are no address.
func prefix(b []byte, bits uint8) netip.Prefix {
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, int(bits))
}
