package nft

import (
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/cnibox/cnibox/spec"
)

// Masquerade translates the source of packets from ip's address to destinations outside its prefix
// into the address of the outgoing interface; multicast is not translated. The address of another attachment is taken over.
func (x *Tx) Masquerade(o spec.Attachment, ip netip.Prefix) {
	ip = unmapPrefix(ip)
	addr := ip.Addr()
	x.put(o, Element{set: masqSet.of(familyOf(addr)), key: addr.AsSlice(), chain: x.ensureChain(outChain(ip.Masked()))})
}

// outChain masquerades packets to destinations outside the prefix. There is one for each prefix in
// use; its rules follow from its name, so that an existing chain with that name need not be read.
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

// maskOf returns the netmask of a prefix, as long as its address.
func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return mask
}

// prefixName formats a prefix with the characters that nft allows in a name.
func prefixName(p netip.Prefix) string {
	return strings.ReplaceAll(strings.ReplaceAll(p.String(), "/", "-"), ":", "_")
}

// unmapPrefix turns an IPv4-mapped IPv6 prefix (RFC 4291 section 2.5.5.2) into an IPv4 one, as in
// packets.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// DropAdverts drops router advertisements that come in by a bridge port.
func (x *Tx) DropAdverts(o spec.Attachment, port string) {
	x.put(o, Element{set: advertSet, key: ifname(port)})
}

// GuardMAC drops frames that come in by the bridge port with a source address other than mac. Both
// elements, the guarded port and its allowed address, are added in one transaction, so no frame
// meets only one of them.
func (x *Tx) GuardMAC(o spec.Attachment, port string, mac net.HardwareAddr) {
	name := ifname(port)
	x.put(o, Element{set: guardedSet, key: name})
	x.put(o, Element{set: macsSet, key: keyOf(name, mac)})
}
