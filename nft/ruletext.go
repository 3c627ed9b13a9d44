package nft

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A teller puts a rule into words, close to those of nft. It follows what
// each register holds.
type teller struct {
	regs   [16]operand
	family byte // of the addresses, once a rule has asked for it
	words  []string
}

// An operand is what a register was loaded with; the zero value is a register
// that nothing was loaded to.
type operand struct {
	text string
	kind valueKind
	size int // bytes
	mask []byte
}

// A valueKind tells how to write what a register is compared with.
type valueKind int

const (
	valueHex valueKind = iota
	valueAddr
	valueNumber // big-endian
	valueNative // in the machine's order
	valueName
	valueProto
	valueFamily
	valueLocal
	valueStatus
)

// ruleText puts a rule's expressions into words. What it does not know is
// written as the expression's name and bytes, so that no two different rules read alike.
func ruleText(table byte, exprs []byte) string {
	t := teller{family: table}
	for _, e := range expressions(exprs) {
		t.tell(e)
	}
	return strings.Join(t.words, " ")
}

func (t *teller) say(format string, args ...any) {
	t.words = append(t.words, fmt.Sprintf(format, args...))
}

// tell writes an expression that matches or acts, and remembers one that loads.
func (t *teller) tell(e expression) {
	d := e.data
	switch e.name {
	case "meta":
		if from := attribute(d, unix.NFTA_META_SREG); from != nil {
			o := t.at(from)
			o.mask = be.AppendUint32(nil, ne.Uint32(append(o.mask, 0, 0, 0, 0))) // of 4 bytes
			t.say("%s set %s & %#x", metaOperand(num(d, unix.NFTA_META_KEY)).text, o.text, o.mask)
			break
		}
		t.load(attribute(d, unix.NFTA_META_DREG), metaOperand(num(d, unix.NFTA_META_KEY)))
	case "payload":
		t.load(attribute(d, unix.NFTA_PAYLOAD_DREG), t.payload(d))
	case "ct":
		t.load(attribute(d, unix.NFTA_CT_DREG), ctOperand(d))
	case "fib":
		t.load(attribute(d, unix.NFTA_FIB_DREG), operand{text: "fib daddr type", kind: valueLocal, size: 4})
	case "bitwise":
		o := t.at(attribute(d, unix.NFTA_BITWISE_SREG))
		o.mask = attribute(d, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
		if flip := attribute(d, unix.NFTA_BITWISE_XOR, unix.NFTA_DATA_VALUE); len(flip) == 4 && ne.Uint32(flip) != 0 {
			o.text = fmt.Sprintf("%#x ^ %s", ne.Uint32(flip), o.text)
		}
		t.load(attribute(d, unix.NFTA_BITWISE_DREG), o)
	case "cmp":
		t.compare(t.at(attribute(d, unix.NFTA_CMP_SREG)), num(d, unix.NFTA_CMP_OP), attribute(d, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE))
	case "range":
		o := t.at(attribute(d, unix.NFTA_RANGE_SREG))
		sign := map[uint64]string{unix.NFT_RANGE_NEQ: "!= "}[num(d, unix.NFTA_RANGE_OP)]
		t.say("%s %s%s-%s", o.text, sign, o.value(attribute(d, unix.NFTA_RANGE_FROM_DATA, unix.NFTA_DATA_VALUE)),
			o.value(attribute(d, unix.NFTA_RANGE_TO_DATA, unix.NFTA_DATA_VALUE)))
	case "lookup":
		t.lookup(d)
	case "nat":
		addr, port := t.at(attribute(d, unix.NFTA_NAT_REG_ADDR_MIN)), t.at(attribute(d, unix.NFTA_NAT_REG_PROTO_MIN))
		t.say("%s to %s%s", natName(num(d, unix.NFTA_NAT_TYPE)), addr.text, colon(port.text))
	case "masq":
		t.say("masquerade")
	case "immediate":
		t.immediate(d)
	case "counter": // counts differ from one look to the next
	case "match":
		t.match(e)
	default:
		t.say("%s[%s]", e.name, hex.EncodeToString(d))
	}
}

// match writes the two matches of x_tables that are made here.
func (t *teller) match(e expression) {
	name, states := text(e.data, unix.NFTA_MATCH_NAME), uint16(0)
	ok := name == "comment"
	if !ok {
		states, ok = conntrackStates(e.data)
	}
	switch {
	case !ok:
		t.say("%s[%s]", e.name, hex.EncodeToString(e.data))
	case name == "comment":
		t.say("xt comment %q", text(e.data, unix.NFTA_MATCH_INFO))
	default:
		t.say("xt conntrack state %#x", states)
	}
}

// natName is nft's word for a type of translation, NFT_NAT_*.
func natName(typ uint64) string {
	if typ == unix.NFT_NAT_SNAT {
		return "snat"
	}
	return "dnat"
}

// colon puts a port behind an address; a translation may have none.
func colon(port string) string {
	if port == "" {
		return ""
	}
	return ":" + port
}

// registerSlot returns the number of a register of 4 bytes. There are two ways to
// count them: NFT_REG_1 and up are the same memory in pieces of 16 bytes, which the
// kernel tells wherever it can. The number may be out of bounds.
func registerSlot(v []byte) int {
	switch n := int(be.Uint64(append(make([]byte, 8-min(len(v), 8)), v[:min(len(v), 8)]...))); {
	case n >= unix.NFT_REG32_00:
		return n - unix.NFT_REG32_00
	default:
		return (n - unix.NFT_REG_1) * 4
	}
}

// at returns what a register holds; nothing for one that does not exist.
func (t *teller) at(reg []byte) operand {
	if i := registerSlot(reg); reg != nil && i >= 0 && i < len(t.regs) {
		return t.regs[i]
	}
	return operand{}
}

// load notes what a register holds; one that does not exist is left alone.
func (t *teller) load(reg []byte, o operand) {
	if i := registerSlot(reg); reg != nil && i >= 0 && i < len(t.regs) {
		t.regs[i] = o
	}
}

// metaOperand names a key of packet information.
func metaOperand(key uint64) operand {
	switch key {
	case unix.NFT_META_PROTOCOL:
		return operand{"meta protocol", valueHex, 4, nil}
	case unix.NFT_META_NFPROTO:
		return operand{"meta nfproto", valueFamily, 1, nil}
	case unix.NFT_META_L4PROTO:
		return operand{"meta l4proto", valueProto, 4, nil}
	case unix.NFT_META_IIFNAME:
		return operand{"iifname", valueName, ifnameLen, nil}
	case unix.NFT_META_OIFNAME:
		return operand{"oifname", valueName, ifnameLen, nil}
	case metaIIFKind:
		return operand{"meta iifkind", valueName, ifnameLen, nil}
	case metaIIFKind + 1:
		return operand{"meta oifkind", valueName, ifnameLen, nil}
	case unix.NFT_META_MARK:
		return operand{"meta mark", valueNative, 4, nil}
	}
	return operand{fmt.Sprintf("meta %d", key), valueHex, 4, nil}
}

// ctOperand names a key of connection tracking.
func ctOperand(d []byte) operand {
	switch num(d, unix.NFTA_CT_KEY) {
	case unix.NFT_CT_STATUS:
		return operand{"ct status", valueStatus, 4, nil}
	case unix.NFT_CT_MARK:
		return operand{"ct mark", valueNative, 4, nil}
	}
	return operand{"ct[" + hex.EncodeToString(d) + "]", valueHex, 4, nil}
}

// payload names the field of a packet that lies at an offset. Which one it is
// depends on the family that the rule has asked for before.
func (t *teller) payload(d []byte) operand {
	base, at, size := num(d, unix.NFTA_PAYLOAD_BASE), num(d, unix.NFTA_PAYLOAD_OFFSET), num(d, unix.NFTA_PAYLOAD_LEN)
	full := max(int(size+3)&^3, 4)
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && t.family == v6 && at == saddr6At:
		return operand{"ip6 saddr", valueAddr, full, nil}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && t.family == v6 && at == daddr6At:
		return operand{"ip6 daddr", valueAddr, full, nil}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && t.family == v4 && at == saddr4At:
		return operand{"ip saddr", valueAddr, full, nil}
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && t.family == v4 && at == daddr4At:
		return operand{"ip daddr", valueAddr, full, nil}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && at == sportAt && size == portLen:
		return operand{"th sport", valueNumber, full, nil}
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && at == dportAt && size == portLen:
		return operand{"th dport", valueNumber, full, nil}
	case base == unix.NFT_PAYLOAD_LL_HEADER && at == etherSourceAt && size == macLen:
		return operand{"ether saddr", valueHex, full, nil}
	}
	return operand{fmt.Sprintf("@%d,%d,%d", base, at, size), valueHex, full, nil}
}

// compare writes a comparison, or remembers the family it asks for.
func (t *teller) compare(o operand, op uint64, v []byte) {
	if o.kind == valueFamily && op == unix.NFT_CMP_EQ && len(v) == 1 {
		t.family = v[0]
	}
	sign := map[uint64]string{
		unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ", unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= ",
	}[op]
	if o.kind == valueStatus && len(o.mask) == 4 && op == unix.NFT_CMP_NEQ && ne.Uint32(o.mask) == ipsDstNAT {
		t.say("ct status dnat")
		return
	}
	t.say("%s %s%s", o.text, sign, o.value(v))
}

// value writes what an operand is compared with, in hex where its length is not
// that of its kind.
func (o operand) value(v []byte) string {
	switch {
	case o.kind == valueAddr:
		return o.addrValue(v)
	case o.kind == valueNumber && o.mask == nil:
		return fmt.Sprint(be.Uint64(append(make([]byte, 8-min(len(v), 8)), v[:min(len(v), 8)]...)))
	case o.kind == valueNative && len(v) == 4:
		if len(o.mask) == 4 {
			return fmt.Sprintf("%#x/%#x", ne.Uint32(v), ne.Uint32(o.mask))
		}
		return fmt.Sprintf("%#x", ne.Uint32(v))
	case o.kind == valueName:
		if len(v) < ifnameLen {
			return `"` + unix.ByteSliceToString(v) + `*"`
		}
		return `"` + unix.ByteSliceToString(v) + `"`
	case o.kind == valueProto && len(v) == 1:
		return protoName(v[0])
	case o.kind == valueFamily && len(v) == 1:
		return familyName(v[0])
	case o.kind == valueLocal && len(v) == 4 && ne.Uint32(v) == unix.RTN_LOCAL:
		return "local"
	}
	if o.mask != nil {
		return hex.EncodeToString(v) + "/" + hex.EncodeToString(o.mask)
	}
	return hex.EncodeToString(v)
}

// addrValue writes an address, or a prefix where a mask or a short value makes one.
func (o operand) addrValue(v []byte) string {
	bits := 8 * len(v)
	if o.mask != nil {
		bits = 0
		for _, m := range o.mask {
			for ; m&0x80 != 0; m <<= 1 {
				bits++
			}
		}
	}
	size := 4
	if strings.HasPrefix(o.text, "ip6") {
		size = 16
	}
	full := make([]byte, size)
	copy(full, v)
	a, _ := netip.AddrFromSlice(full)
	p := netip.PrefixFrom(a, bits)
	if p.IsSingleIP() {
		return a.String()
	}
	return p.String()
}

// lookup writes a search in a set, and loads what a map answers. The key is told
// by what the registers were loaded with, joined by dots as nft does it.
func (t *teller) lookup(d []byte) {
	name := text(d, unix.NFTA_LOOKUP_SET)
	var parts []string
	i := registerSlot(attribute(d, unix.NFTA_LOOKUP_SREG))
	for n := t.keyRegisters(name); i >= 0 && i < len(t.regs) && n > 0; {
		o := t.regs[i]
		parts = append(parts, o.text)
		step := max(o.size, 4) / 4
		i, n = i+step, n-step
	}
	key := strings.Join(parts, " . ")
	to := attribute(d, unix.NFTA_LOOKUP_DREG)
	switch {
	case to == nil && num(d, unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0:
		t.say("%s != @%s", key, name)
	case to == nil:
		t.say("%s @%s", key, name)
	case be.Uint32(to) == unix.NFT_REG_VERDICT:
		t.say("%s vmap @%s", key, name)
	default:
		t.load(to, operand{text: key + " map @" + name})
		if i := registerSlot(to) + int(addrLen(t.family))/4; i >= 0 && i < len(t.regs) {
			t.regs[i] = operand{} // the port is part of what the map answers
		}
	}
}

// keyRegisters returns how many registers the key of a set fills; for sets
// that are not ours, one.
func (t *teller) keyRegisters(name string) int {
	for _, in := range sets {
		if in.name == name {
			return int(datatype(in.key).Bytes) / 4
		}
	}
	return 1
}

// immediate writes a verdict, or remembers a value for nat.
func (t *teller) immediate(d []byte) {
	if num(d, unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT {
		v := attribute(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE)
		t.load(attribute(d, unix.NFTA_IMMEDIATE_DREG), operand{text: hex.EncodeToString(v), size: len(v)})
		return
	}
	v := attribute(d, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
	t.say("%s", verdictText(v))
}

// verdictText writes a verdict of a rule or an element.
func verdictText(v []byte) string {
	to := text(v, unix.NFTA_VERDICT_CHAIN)
	switch code := int32(num(v, unix.NFTA_VERDICT_CODE)); code {
	case int32(expr.VerdictJump):
		return "jump " + to
	case int32(expr.VerdictGoto):
		return "goto " + to
	case int32(expr.VerdictReturn):
		return "return"
	case int32(expr.VerdictDrop):
		return "drop"
	case int32(expr.VerdictAccept):
		return "accept"
	default:
		return fmt.Sprintf("verdict %d %s", code, to)
	}
}

// familyName is nft's word for a family of "meta nfproto".
func familyName(f byte) string {
	switch f {
	case v4:
		return "ipv4"
	case v6:
		return "ipv6"
	}
	return fmt.Sprint(f)
}
