package nft

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// Masquerade gives what ip's address sends to anywhere outside its prefix the
// address of the interface it leaves by; multicast keeps its own. Whose the
// address is says [Tx.claim].
func (x *Tx) Masquerade(o spec.Attachment, ip netip.Prefix) {
	ip = plain(ip)
	x.claim(o, masqAddrs, ip.Addr(), x.need(outChain(ip.Masked())), filterUnknown)
}

// outChain masquerades what does not stay within the prefix. There is one for
// each prefix in use, and what it does follows from its name, so that a chain
// found under the name need not be read.
func outChain(p netip.Prefix) chain {
	family := familyOf(p.Addr())
	return chain{
		name: "out-" + prefixName(p), needs: masqNeeds,
		rules: []*rule{
			newRule().family(family).inside(p, true).verdict(toReturn, ""),
			newRule().masquerade(),
		},
	}
}

// inside matches an address of the prefix; the address is the destination or the source.
func (r *rule) inside(p netip.Prefix, dst bool) *rule {
	r.addr(familyOf(p.Addr()), dst, 0)
	return r.prefix(unix.NFT_CMP_EQ, p)
}

// prefix compares a loaded address with a prefix. The mask changes the register, so
// the address must be loaded anew for another comparison.
func (r *rule) prefix(op uint32, p netip.Prefix) *rule {
	if !p.IsSingleIP() {
		r.mask(maskOf(p))
	}
	return r.cmp(op, 0, p.Masked().Addr().AsSlice())
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

// plain turns an IPv4 prefix in IPv6's clothes (RFC 4291 section 2.5.5.2) into an
// IPv4 one: packets bear it as that.
func plain(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// NoAdverts drops the router advertisements that come in by a port of a bridge.
func (x *Tx) NoAdverts(o spec.Attachment, port string) {
	x.put(o, &sets[advertSet], element{key: ifname(port)})
}

// GuardMAC drops frames that come in by the bridge port and have another
// source address than mac. Both elements, that the port is guarded and what it may
// send, come in one transaction, so no frame is judged by half of it.
func (x *Tx) GuardMAC(o spec.Attachment, port string, mac net.HardwareAddr) {
	name := ifname(port)
	x.put(o, &sets[guardedSet], element{key: name})
	x.put(o, &sets[macsSet], element{key: keyOf(name, mac)})
}
