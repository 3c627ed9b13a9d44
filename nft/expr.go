package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// be, ne: nf_tables numbers its attributes in network order; a few loaded
// values (marks, address types) are in the machine's.
var (
	be = binary.BigEndian
	ne = binary.NativeEndian
)

// Where the fields that rules look at lie, in bytes: RFC 791, RFC 8200,
// Ethernet II; ports are at the same place in TCP, UDP and SCTP.
const (
	saddr4At, daddr4At = 12, 16
	saddr6At, daddr6At = 8, 24
	sportAt, dportAt   = 0, 2
	etherSourceAt      = 6
	innerVLANAt        = 18 // of the second VLAN tag of a frame
	icmpTypeAt         = 0
	metaIIFKind        = 26 // NFT_META_IIFKIND, followed by NFT_META_OIFKIND as the names are
	macLen, portLen    = 6, 2
	ifnameLen          = unix.IFNAMSIZ
)

// Registers hold what a rule has loaded until something else is loaded there; no
// rule may count on what another loaded.
const (
	reg        = unix.NFT_REG32_00 // the first of the 16 registers of 4 bytes
	ipsDstNAT  = 1 << 5            // IPS_DST_NAT, include/uapi/linux/netfilter/nf_conntrack_common.h
	noRegister = ^uint32(0)
)

// A rule is the list of expressions of one rule, encoded; registers are
// numbered from 0, 4 bytes each. Expressions are evaluated in order until one
// does not match. Their attributes: include/uapi/linux/netfilter/nf_tables.h.
type rule struct{ b netlink.Buf }

// expr appends an expression; the methods below are one each.
func (r *rule) expr(name string, body func(b *netlink.Buf)) *rule {
	r.b.Nest(unix.NFTA_LIST_ELEM, func() {
		r.b.Text(unix.NFTA_EXPR_NAME, name)
		r.b.Nest(unix.NFTA_EXPR_DATA, func() {
			if body != nil {
				body(&r.b)
			}
		})
	})
	return r
}

// meta loads what the kernel knows about a packet beside its bytes: NFT_META_*. Of
// what is used here, names of interfaces fill 4 registers, the rest one.
func (r *rule) meta(key, to uint32) *rule {
	return r.expr("meta", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_META_KEY, key)
		b.Net32(unix.NFTA_META_DREG, reg+to)
	})
}

// payload loads bytes of a header, NFT_PAYLOAD_*, from an offset in bytes. The rule
// does not match a packet that is too short, or has no such header.
func (r *rule) payload(base, at, size, to uint32) *rule {
	return r.expr("payload", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_PAYLOAD_DREG, reg+to)
		b.Net32(unix.NFTA_PAYLOAD_BASE, base)
		b.Net32(unix.NFTA_PAYLOAD_OFFSET, at)
		b.Net32(unix.NFTA_PAYLOAD_LEN, size)
	})
}

// ct loads a key of the connection, NFT_CT_*. The rule does not match a packet
// that belongs to none.
func (r *rule) ct(key, to uint32) *rule {
	return r.expr("ct", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_CT_KEY, key)
		b.Net32(unix.NFTA_CT_DREG, reg+to)
	})
}

// cmp compares a register with a value, as many bytes as it has: NFT_CMP_*. The
// order of greater and less is that of bytes, so of numbers in network order.
func (r *rule) cmp(op, from uint32, v []byte) *rule {
	return r.expr("cmp", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_CMP_SREG, reg+from)
		b.Net32(unix.NFTA_CMP_OP, op)
		b.Nest(unix.NFTA_CMP_DATA, func() { b.Bytes(unix.NFTA_DATA_VALUE, v) })
	})
}

// equal compares register 0 with the bytes.
func (r *rule) equal(v ...byte) *rule { return r.cmp(unix.NFT_CMP_EQ, 0, v) }

// within compares register 0 with a range, both ends included.
func (r *rule) within(op uint32, lo, hi []byte) *rule {
	return r.expr("range", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_RANGE_SREG, reg)
		b.Net32(unix.NFTA_RANGE_OP, op)
		b.Nest(unix.NFTA_RANGE_FROM_DATA, func() { b.Bytes(unix.NFTA_DATA_VALUE, lo) })
		b.Nest(unix.NFTA_RANGE_TO_DATA, func() { b.Bytes(unix.NFTA_DATA_VALUE, hi) })
	})
}

// setMark gives the packet's mark our bit, or with 0 takes it away.
func (r *rule) setMark(bit uint32) *rule {
	return r.meta(unix.NFT_META_MARK, 0).bits(native(^uint32(publishedMark)), native(bit)).expr("meta", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_META_KEY, unix.NFT_META_MARK)
		b.Net32(unix.NFTA_META_SREG, reg)
	})
}

// mask keeps the bits of register 0 that are set in v.
func (r *rule) mask(v []byte) *rule { return r.bits(v, make([]byte, len(v))) }

// bits is mask, and inverts the bits that are set in flip.
func (r *rule) bits(keep, flip []byte) *rule {
	return r.expr("bitwise", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_BITWISE_SREG, reg)
		b.Net32(unix.NFTA_BITWISE_DREG, reg)
		b.Net32(unix.NFTA_BITWISE_LEN, uint32(len(keep)))
		b.Nest(unix.NFTA_BITWISE_MASK, func() { b.Bytes(unix.NFTA_DATA_VALUE, keep) })
		b.Nest(unix.NFTA_BITWISE_XOR, func() { b.Bytes(unix.NFTA_DATA_VALUE, flip) })
	})
}

// lookup searches the set for register 0 and those after it. What a map has
// for it goes to the register to; a verdict is to be followed at once.
func (r *rule) lookup(set *set, to uint32, invert bool) *rule {
	return r.expr("lookup", func(b *netlink.Buf) {
		b.Text(unix.NFTA_LOOKUP_SET, set.name)
		b.Net32(unix.NFTA_LOOKUP_SREG, reg)
		switch {
		case set.verdicts:
			b.Net32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT)
		case to != noRegister:
			b.Net32(unix.NFTA_LOOKUP_DREG, reg+to)
		}
		if invert {
			b.Net32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
	})
}

// localDst matches what is sent to an address of this host, as nft's "fib daddr
// type local": a packet that only passes by keeps its destination (CVE-2025-67499).
func (r *rule) localDst() *rule {
	r.expr("fib", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_FIB_DREG, reg)
		b.Net32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		b.Net32(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
	})
	return r.equal(native(unix.RTN_LOCAL)...)
}

// dnat sends the connection to the address in register 0 and the port in
// the register after it, which is where a map of both puts them. The packet is
// accepted by that, and no other rule of the hook's chain is asked.
func (r *rule) dnat(family byte) *rule {
	return r.expr("nat", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b.Net32(unix.NFTA_NAT_FAMILY, uint32(family))
		b.Net32(unix.NFTA_NAT_REG_ADDR_MIN, reg)
		b.Net32(unix.NFTA_NAT_REG_PROTO_MIN, reg+addrLen(family)/4)
	})
}

// masquerade gives the connection the address of the interface it leaves by,
// and accepts the packet as dnat does.
func (r *rule) masquerade() *rule { return r.expr("masq", nil) }

// family makes a rule of an inet table one for IPv4 or IPv6.
func (r *rule) family(family byte) *rule {
	return r.meta(unix.NFT_META_NFPROTO, 0).equal(family)
}

// addr loads the destination or source address.
func (r *rule) addr(family byte, dst bool, to uint32) *rule {
	at := uint32(saddr4At)
	switch {
	case family == v6 && dst:
		at = daddr6At
	case family == v6:
		at = saddr6At
	case dst:
		at = daddr4At
	}
	return r.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, at, addrLen(family), to)
}

// port loads protocol and destination port into two registers.
func (r *rule) port(to uint32) *rule {
	return r.meta(unix.NFT_META_L4PROTO, to).
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, dportAt, portLen, to+1)
}

// ifname compares a loaded interface name: all of it, or what precedes a
// trailing star.
func (r *rule) ifname(op uint32, name string) *rule {
	if n := len(name) - 1; n >= 0 && name[n] == '*' {
		return r.cmp(op, 0, []byte(name[:n]))
	}
	return r.cmp(op, 0, ifname(name))
}

// verdict ends the rule with one of the codes below; chain is for jumps alone.
func (r *rule) verdict(code int32, chain string) *rule {
	return r.expr("immediate", func(b *netlink.Buf) {
		b.Net32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b.Nest(unix.NFTA_IMMEDIATE_DATA, func() { putVerdict(b, code, chain) })
	})
}

// putVerdict appends a verdict as the data of an expression or an element.
func putVerdict(b *netlink.Buf, code int32, chain string) {
	b.Nest(unix.NFTA_DATA_VERDICT, func() {
		b.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
		if chain != "" {
			b.Text(unix.NFTA_VERDICT_CHAIN, chain)
		}
	})
}

// Verdict codes: enum nft_verdicts in include/uapi/linux/netfilter/nf_tables.h
// and NF_DROP, NF_ACCEPT in netfilter.h.
const (
	toReturn int32 = unix.NFT_RETURN
	toGoto   int32 = unix.NFT_GOTO
	toJump   int32 = unix.NFT_JUMP
	toDrop   int32 = 0 // NF_DROP
	accept         = 1 // NF_ACCEPT
)

// native is a loaded value that the kernel keeps in the machine's order.
func native(v uint32) []byte { return ne.AppendUint32(nil, v) }

// ifname is an interface's name as the kernel compares it: 16 bytes, the rest
// zero. A name that is too long is cut and matches nothing.
func ifname(name string) []byte {
	b := make([]byte, ifnameLen)
	copy(b[:ifnameLen-1], name)
	return b
}

// addrLen is the length of an address in bytes.
func addrLen(family byte) uint32 {
	if family == v6 {
		return 16
	}
	return 4
}
