package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// A ruling has the conditions and the verdict of another program's rule, as far as they are decoded
// here. An empty condition matches any packet.
type ruling struct {
	sure    bool // all conditions are decoded; else the rule matches fewer packets
	in, out string
	family  byte // NFPROTO_IPV4 or NFPROTO_IPV6
	proto   byte
	ports   [][2]uint16 // destination ports; first and last
	src     netip.Prefix
	dst     netip.Prefix

	verdict expr.VerdictKind
	decides bool   // the rule has a verdict
	chain   string // of a jump or goto
	to      target // of dnat and redirect, which accept
}

// Byte offsets of the protocol in the headers of IPv4 and IPv6.
const proto4At, proto6At = 9, 6

// A target is where a rule redirects a connection.
type target struct {
	what string // "dnat" or "redirect"; empty: none
	addr netip.Addr
	port uint16
}

// String formats the statement in the syntax of nft.
func (t target) String() string {
	switch {
	case t.addr.IsValid() && t.port != 0:
		return t.what + " to " + netip.AddrPortFrom(t.addr, t.port).String()
	case t.addr.IsValid():
		return t.what + " to " + t.addr.String()
	case t.port != 0:
		return fmt.Sprintf("%s to :%d", t.what, t.port)
	}
	return t.what
}

// Contents of a register that are not the value of an immediate expression.
const (
	loadedOther = iota // not decoded here
	loadedIn
	loadedOut
	loadedFamily
	loadedProto
	loadedPort
	loadedSource
	loadedDestination
	loadedType // type of the destination address, from the FIB
)

// A register has what a rule has loaded into it.
type register struct {
	what  int
	size  int    // bytes
	mask  []byte // of a bitwise expression; nil: none
	value []byte // of an immediate expression
}

// A reader decodes the rules of one table and reads its sets.
type reader struct {
	s      *sock
	family byte
	table  string
}

func (t *reader) ruling(r *installedRule) *ruling {
	d := &ruling{sure: true}
	if t.family != inet {
		d.family = t.family
	}
	regs := map[uint32]register{}
	for _, e := range expressions(r.exprs) {
		if !t.read(d, regs, &e) {
			d.sure = false
		}
	}
	return d
}

// first converts a register number into units of 4 bytes: the first registers have two numbers.
func first(number uint32) uint32 {
	if number >= unix.NFT_REG32_00 {
		return number - unix.NFT_REG32_00
	}
	return (number - unix.NFT_REG_1) * 4
}

// read decodes one expression; false: its condition is not supported here, or it cannot be decoded.
func (t *reader) read(d *ruling, regs map[uint32]register, e *expression) bool {
	decode := func(into expr.Any) bool { return expr.Unmarshal(t.family, e.data, into) == nil }
	switch e.name {
	case "counter", "log":
		return true
	case "meta":
		var m expr.Meta
		ok := decode(&m) && !m.SourceRegister
		if ok {
			regs[first(m.Register)] = register{what: metaKey(m.Key)}
		}
		return ok
	case "payload":
		var p expr.Payload
		ok := decode(&p) && p.OperationType == expr.PayloadLoad
		if ok {
			regs[first(p.DestRegister)] = register{what: d.header(&p), size: int(p.Len)}
		}
		return ok
	case "fib":
		var f expr.Fib
		ok := decode(&f)
		if ok && f.ResultADDRTYPE && f.FlagDADDR && !f.FlagSADDR {
			regs[first(f.Register)] = register{what: loadedType}
		}
		return ok
	case "bitwise":
		var b expr.Bitwise
		ok := decode(&b) && !slices.ContainsFunc(b.Xor, func(x byte) bool { return x != 0 })
		if ok {
			r := regs[first(b.SourceRegister)]
			r.mask = b.Mask
			regs[first(b.DestRegister)] = r
		}
		return ok
	case "cmp":
		var c expr.Cmp
		return decode(&c) && d.compare(regs[first(c.Register)], c.Op, c.Data)
	case "range":
		var r expr.Range
		return decode(&r) && r.Op == expr.CmpOpEq && regs[first(r.Register)].what == loadedPort && len(r.FromData) == portLen && len(r.ToData) == portLen &&
			d.addPorts([2]uint16{binary.BigEndian.Uint16(r.FromData), binary.BigEndian.Uint16(r.ToData)})
	case "lookup":
		var l expr.Lookup
		return decode(&l) && !l.Invert && !l.IsDestRegSet && regs[first(l.SourceRegister)].what == loadedPort && d.addPorts(t.portsOf(l.SetName)...)
	case "match":
		return d.match(e.data, decode)
	}
	return t.decide(d, regs, e, decode)
}

// metaKey returns the register content that a meta key loads.
func metaKey(key expr.MetaKey) int {
	switch key {
	case expr.MetaKeyIIFNAME:
		return loadedIn
	case expr.MetaKeyOIFNAME:
		return loadedOut
	case expr.MetaKeyNFPROTO:
		return loadedFamily
	case expr.MetaKeyL4PROTO:
		return loadedProto
	}
	return loadedOther
}

// header returns the register content that a part of the packet headers loads.
func (d *ruling) header(p *expr.Payload) int {
	switch {
	case p.Base == expr.PayloadBaseTransportHeader && p.Offset == dportAt && p.Len == portLen:
		return loadedPort
	case p.Base != expr.PayloadBaseNetworkHeader:
	case d.family == v4 && p.Offset == proto4At && p.Len == 1, d.family == v6 && p.Offset == proto6At && p.Len == 1:
		return loadedProto
	case d.family == v4 && p.Offset == saddr4At && p.Len <= 4, d.family == v6 && p.Offset == saddr6At && p.Len <= 16:
		return loadedSource
	case d.family == v4 && p.Offset == daddr4At && p.Len <= 4, d.family == v6 && p.Offset == daddr6At && p.Len <= 16:
		return loadedDestination
	}
	return loadedOther
}

// compare adds the condition of a cmp expression.
func (d *ruling) compare(r register, op expr.CmpOp, value []byte) bool {
	if r.what == loadedPort && r.mask == nil && len(value) == portLen {
		return d.comparePort(op, binary.BigEndian.Uint16(value))
	}
	if op != expr.CmpOpEq || len(value) == 0 || r.mask != nil && r.what != loadedSource && r.what != loadedDestination {
		return false
	}
	switch r.what {
	case loadedIn:
		d.in = linkOf(value)
	case loadedOut:
		d.out = linkOf(value)
	case loadedFamily:
		d.family = value[0]
	case loadedProto:
		d.proto = value[0]
	case loadedSource:
		d.src = d.prefix(r, value)
		return d.src.IsValid()
	case loadedDestination:
		d.dst = d.prefix(r, value)
		return d.dst.IsValid()
	case loadedType:
		return bytes.Equal(value, native(unix.RTN_LOCAL))
	default:
		return false
	}
	return true
}

// comparePort is compare for a port. A range is two comparisons: with its first port, and with its
// last.
func (d *ruling) comparePort(op expr.CmpOp, port uint16) bool {
	switch {
	case op == expr.CmpOpEq:
		return d.addPorts([2]uint16{port, port})
	case op == expr.CmpOpGte:
		return d.addPorts([2]uint16{port, 65535})
	case op == expr.CmpOpLte && len(d.ports) == 1 && d.ports[0][1] == 65535:
		d.ports[0][1] = port
		return true
	}
	return op == expr.CmpOpLte && d.addPorts([2]uint16{0, port})
}

// linkOf returns the link name in a comparison; a prefix of names ends with *.
func linkOf(value []byte) string {
	name := unix.ByteSliceToString(value)
	if len(name) == len(value) {
		return name + "*"
	}
	return name
}

// prefix returns the prefix of a comparison, which compares the first bytes of an address or uses a
// mask.
func (d *ruling) prefix(r register, value []byte) netip.Prefix {
	bits := len(value) * 8
	if r.mask != nil {
		bits = 0
		for _, b := range r.mask {
			for ; b&0x80 != 0; b <<= 1 {
				bits++
			}
			if b != 0 {
				return netip.Prefix{}
			}
		}
	}
	whole := make([]byte, addrLen(d.family))
	copy(whole, value)
	p, _ := addrOf(whole, d.family).Prefix(bits)
	return p
}

// addPorts adds the ports of a condition; false: it has none, or the ruling has such a condition
// already.
func (d *ruling) addPorts(ports ...[2]uint16) bool {
	if len(ports) == 0 || d.ports != nil {
		return false
	}
	d.ports = ports
	return true
}

// portsOf returns the ports of a set; nil: its keys are not ports or intervals of ports.
func (t *reader) portsOf(set string) (ports [][2]uint16) {
	readable := true
	err := t.s.request(nfTables|unix.NFT_MSG_GETSETELEM, netlink.Dump, t.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(_ byte, data []byte) {
		for typ, elem := range nlconn.Attributes(nlconn.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if typ != unix.NFTA_LIST_ELEM {
				continue
			}
			key := nlconn.Attribute(elem, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
			if len(key) != portLen || num(elem, unix.NFTA_SET_ELEM_FLAGS) != 0 {
				readable = false
				return
			}
			port := binary.BigEndian.Uint16(key)
			ports = append(ports, [2]uint16{port, port})
		}
	})
	if err != nil || !readable || slices.Contains(ports, [2]uint16{}) { // an interval set begins with 0
		return nil
	}
	return ports
}

// match adds the condition of a match of x_tables.
func (d *ruling) match(data []byte, decode func(expr.Any) bool) bool {
	if text(data, unix.NFTA_MATCH_NAME) == "comment" {
		return true
	}
	var m expr.Match
	if !decode(&m) {
		return false
	}
	any := [2]uint16{0, 65535}
	switch info := m.Info.(type) {
	case *xt.Tcp:
		d.proto = unix.IPPROTO_TCP
		return info.SrcPorts == any && info.InvFlags == 0 && info.FlagsMask == 0 && info.Option == 0 && (info.DstPorts == any || d.addPorts(info.DstPorts))
	case *xt.Udp:
		d.proto = unix.IPPROTO_UDP
		return info.SrcPorts == any && info.InvFlags == 0 && (info.DstPorts == any || d.addPorts(info.DstPorts))
	case *xt.AddrTypeV1:
		return info.Source == 0 && info.Dest == 1<<unix.RTN_LOCAL && info.Flags == 0
	}
	return false
}

// decide decodes an expression that decides about the packet.
func (t *reader) decide(d *ruling, regs map[uint32]register, e *expression, decode func(expr.Any) bool) bool {
	switch e.name {
	case "immediate":
		if nlconn.Attribute(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT) != nil {
			d.verdict, d.decides, d.chain = e.verdict(), true, e.jump()
			return true
		}
		var i expr.Immediate
		ok := decode(&i)
		if ok {
			regs[first(i.Register)] = register{value: i.Data}
		}
		return ok
	case "reject":
		d.verdict, d.decides = expr.VerdictDrop, true
		return true
	case "nat":
		var n expr.NAT
		ok := decode(&n) && n.Type == expr.NATTypeDestNAT
		if ok {
			d.send("dnat", regs[first(n.RegAddrMin)].value, regs[first(n.RegProtoMin)].value)
		}
		return ok
	case "redir":
		var r expr.Redir
		ok := decode(&r)
		if ok {
			d.send("redirect", nil, regs[first(r.RegisterProtoMin)].value)
		}
		return ok
	case "target":
		return d.xtTarget(e.data, decode)
	}
	return false
}

func (d *ruling) send(what string, addr, port []byte) {
	d.verdict, d.decides, d.to = expr.VerdictAccept, true, target{what: what}
	d.to.addr, _ = netip.AddrFromSlice(addr)
	if len(port) == portLen {
		d.to.port = binary.BigEndian.Uint16(port)
	}
}

// xtTarget decodes a target of x_tables.
func (d *ruling) xtTarget(data []byte, decode func(expr.Any) bool) bool {
	switch text(data, unix.NFTA_TARGET_NAME) {
	case "REJECT":
		d.verdict, d.decides = expr.VerdictDrop, true
		return true
	case "DNAT":
		var t expr.Target
		if !decode(&t) {
			return false
		}
		if nat, ok := t.Info.(*xt.NatRange2); ok {
			addr, _ := netip.AddrFromSlice(nat.MinIP)
			d.send("dnat", addr.Unmap().AsSlice(), port16(nat.MinPort))
			return true
		}
		d.send("dnat", nil, nil)
		return true
	case "REDIRECT":
		d.send("redirect", nil, nil)
		return true
	}
	return false
}

// unconditional reports whether the rule matches every packet of its table.
func (d *ruling) unconditional() bool {
	return d.sure && d.decides && d.in == "" && d.out == "" && d.proto == 0 && d.ports == nil && !d.src.IsValid() && !d.dst.IsValid()
}
