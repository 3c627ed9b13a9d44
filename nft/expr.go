package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Byte offsets of the header fields that rules match: RFC 791, RFC 8200, Ethernet II. Ports are at
// the same offset in TCP, UDP and SCTP.
const (
	saddr4At, daddr4At = 12, 16
	saddr6At, daddr6At = 8, 24
	dportAt            = 2
	etherSourceAt      = 6
	innerVLANAt        = 18 // of the second VLAN tag of a frame
	icmpTypeAt         = 0
	macLen, portLen    = 6, 2
	ifnameLen          = unix.IFNAMSIZ
	ifnameRegs         = ifnameLen / 4
	ipsDstNAT          = 1 << 5 // IPS_DST_NAT, include/uapi/linux/netfilter/nf_conntrack_common.h
)

// reg is the first of the 16 registers of 4 bytes. A register keeps its value until the next load;
// no rule may rely on a value that another rule loaded.
const reg = unix.NFT_REG32_00

// A rule is a list of expressions, which are evaluated in order until one does not match. Each
// method appends one or more expressions; registers are counted from 0.
type rule []expr.Any

// meta loads packet metadata. Interface names fill 4 registers, the other keys in use one.
func (r rule) meta(key expr.MetaKey, to uint32) rule {
	return append(r, &expr.Meta{Key: key, Register: reg + to})
}

// payload loads bytes of a header from an offset. The rule does not match a packet that is too
// short or lacks the header.
func (r rule) payload(base expr.PayloadBase, offset, size, to uint32) rule {
	return append(r, &expr.Payload{Base: base, Offset: offset, Len: size, DestRegister: reg + to})
}

// ct loads a key of the connection. The rule does not match a packet without a connection.
func (r rule) ct(key expr.CtKey) rule {
	return append(r, &expr.Ct{Key: key, Register: reg})
}

// cmp compares as many bytes as the value has, from register 0 on. Greater and less compare bytes,
// so numbers must be in network byte order.
func (r rule) cmp(op expr.CmpOp, v []byte) rule {
	return append(r, &expr.Cmp{Op: op, Register: reg, Data: v})
}

func (r rule) equal(v ...byte) rule { return r.cmp(expr.CmpOpEq, v) }

// setMark sets our bit in the packet's mark, or with 0 clears it.
func (r rule) setMark(bit uint32) rule {
	r = r.meta(expr.MetaKeyMARK, 0).bits(native(^uint32(publishedMark)), native(bit))
	return append(r, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg})
}

// mask keeps the bits of register 0 that are set in v.
func (r rule) mask(v []byte) rule { return r.bits(v, make([]byte, len(v))) }

// bits is mask, and inverts the bits that are set in flip.
func (r rule) bits(keep, flip []byte) rule {
	return append(r, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(keep)), Mask: keep, Xor: flip})
}

// lookup searches the set for the key from register 0 on. A map's data goes to the same registers;
// a verdict is executed at once.
func (r rule) lookup(set *set) rule {
	l := &expr.Lookup{SetName: set.name, SourceRegister: reg, IsDestRegSet: set.isMap()}
	if set.isMap() && !set.verdicts() {
		l.DestRegister = reg
	}
	return append(r, l)
}

// notIn matches if the set does not have the key.
func (r rule) notIn(set *set) rule {
	return append(r, &expr.Lookup{SetName: set.name, SourceRegister: reg, Invert: true})
}

// localDst matches packets to an address of this host, as nft's "fib daddr type local" does. It
// does not match forwarded packets, whose destination must stay (CVE-2025-67499).
func (r rule) localDst() rule {
	return append(r, &expr.Fib{Register: reg, ResultADDRTYPE: true, FlagDADDR: true}).equal(native(unix.RTN_LOCAL)...)
}

// dnat translates the connection to the address in register 0 and the port in the next register,
// where a map of both puts them. It accepts the packet, so no other rule of the base chain is
// evaluated.
func (r rule) dnat(family byte) rule {
	return append(r, &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: reg, RegProtoMin: reg + addrLen(family)/4})
}

// masquerade gives the connection the address of the interface by which it leaves, and accepts the
// packet as dnat does.
func (r rule) masquerade() rule { return append(r, &expr.Masq{}) }

// family restricts a rule of an inet table to IPv4 or IPv6.
func (r rule) family(family byte) rule { return r.meta(expr.MetaKeyNFPROTO, 0).equal(family) }

// addr loads the destination or source address.
func (r rule) addr(family byte, dst bool) rule {
	offset := uint32(saddr4At)
	switch {
	case family == v6 && dst:
		offset = daddr6At
	case family == v6:
		offset = saddr6At
	case dst:
		offset = daddr4At
	}
	return r.payload(expr.PayloadBaseNetworkHeader, offset, addrLen(family), 0)
}

// inside compares a loaded address with a prefix. The mask changes the register, so another
// comparison must load the address again.
func (r rule) inside(op expr.CmpOp, p netip.Prefix) rule {
	if !p.IsSingleIP() {
		r = r.mask(maskOf(p))
	}
	return r.cmp(op, p.Masked().Addr().AsSlice())
}

// port loads the protocol and the destination port into two registers.
func (r rule) port(to uint32) rule {
	return r.meta(expr.MetaKeyL4PROTO, to).payload(expr.PayloadBaseTransportHeader, dportAt, portLen, to+1)
}

// ifname compares a loaded interface name with name, or with the part before a trailing star.
func (r rule) ifname(op expr.CmpOp, name string) rule {
	if n := len(name) - 1; n >= 0 && name[n] == '*' {
		return r.cmp(op, []byte(name[:n]))
	}
	return r.cmp(op, ifname(name))
}

// match appends a match of x_tables; the kernel requires its data in full length.
func (r rule) match(name string, revision uint32, info []byte) rule {
	raw := xt.Unknown(info)
	return append(r, &expr.Match{Name: name, Rev: revision, Info: &raw})
}

// list returns the rule's expressions as the kernel lists them.
func (r rule) list() []byte {
	var all []netlink.Attribute
	for _, e := range r {
		data, err := expr.Marshal(inet, e)
		if err != nil {
			panic(err) // the values come from this package
		}
		all = append(all, netlink.Attribute{Type: netlink.Nested | unix.NFTA_LIST_ELEM, Data: data})
	}
	list, err := netlink.MarshalAttributes(all)
	if err != nil {
		panic(err)
	}
	return list
}

func (r rule) counter() rule { return append(r, &expr.Counter{}) }

func (r rule) jump(chain string) rule {
	return append(r, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func (r rule) drop() rule { return append(r, &expr.Verdict{Kind: expr.VerdictDrop}) }

func (r rule) accept() rule { return append(r, &expr.Verdict{Kind: expr.VerdictAccept}) }

// verdictReturn returns to the chain that jumped here.
func (r rule) verdictReturn() rule { return append(r, &expr.Verdict{Kind: expr.VerdictReturn}) }

// native encodes a value that the kernel keeps in host byte order.
func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// ifname encodes an interface name as the kernel compares it: 16 bytes, padded with zeros. A name
// that is too long is cut and matches nothing.
func ifname(name string) []byte {
	b := make([]byte, ifnameLen)
	copy(b[:ifnameLen-1], name)
	return b
}

func addrLen(family byte) uint32 {
	if family == v6 {
		return 16
	}
	return 4
}
