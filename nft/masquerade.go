package nft

import (
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"

	"cnibox/spec"
)

// Masquerade gives what ip's address sends to anywhere outside its prefix the
// address of the interface it leaves by; multicast keeps its own. [Tx.assign] has the
// rules about its owner.
func (x *Tx) Masquerade(o spec.Attachment, ip netip.Prefix) {
	ip = unmapPrefix(ip)
	x.assign(o, masqSet, masqNextSet, ip.Addr(), x.ensureChain(outChain(ip.Masked())), filterUnset)
}

// outChain masquerades what does not stay within the prefix. There is one for
// each prefix in use, and what it does follows from its name, so that a chain
// found under the name need not be read.
func outChain(p netip.Prefix) chain {
	family := familyOf(p.Addr())
	return chain{
		name: "out-" + prefixName(p), needs: masqNeeds,
		rules: []rule{
			rule{}.family(family).addr(family, true).inside(expr.CmpOpEq, p).verdictReturn(),
			rule{}.masquerade(),
		},
	}
}

// maskOf is the netmask of a prefix, as long as its address.
func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return mask
}

// prefixName writes a prefix with the letters that nft allows in a name.
func prefixName(p netip.Prefix) string {
	return strings.ReplaceAll(strings.ReplaceAll(p.String(), "/", "-"), ":", "_")
}

// unmapPrefix turns an IPv4-mapped IPv6 prefix (RFC 4291 section 2.5.5.2) into an
// IPv4 one, which is what packets have.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// DropAdverts drops the router advertisements that come in by a port of a bridge.
func (x *Tx) DropAdverts(o spec.Attachment, port string) {
	x.put(o, Element{set: advertSet, key: ifname(port)})
}

// GuardMAC drops frames that come in by the bridge port and have another
// source address than mac. Both elements, that the port is guarded and what it may
// send, come in one transaction, so no frame is judged by half of it.
func (x *Tx) GuardMAC(o spec.Attachment, port string, mac net.HardwareAddr) {
	name := ifname(port)
	x.put(o, Element{set: guardedSet, key: name})
	x.put(o, Element{set: macsSet, key: keyOf(name, mac)})
}
