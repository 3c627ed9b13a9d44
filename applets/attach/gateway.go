package attach

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// CheckGateways checks that each address of the result has a gateway of its family. A gateway must
// be an address that a link can have, and must differ from these addresses and from broadcast
// addresses. The code is 7.
func (op *Op) CheckGateways() error {
	for _, ip := range op.Result.IPs {
		net, gw := ip.Address, ip.Gateway
		usable := gw.IsGlobalUnicast() || gw.IsLinkLocalUnicast()
		isOwn := slices.ContainsFunc(op.Result.IPs, func(o spec.IP) bool { return o.Address.Addr() == gw })
		broadcast := gw.Is4() && net.Bits() < 31 && net.Contains(gw) && !net.Contains(gw.Next())
		if !usable || isOwn || broadcast || gw.Is4() != net.Addr().Is4() {
			return spec.Errorf(spec.CodeConfig, "%s: address %s needs a gateway of its own family, an address of another host: set \"gateway\" in \"ipam\" (%q), which is %s now",
				op.Net.Type, net, op.Net.IPAM.Type, gatewayText(gw))
		}
	}
	return nil
}

// gatewayText formats a gateway, which may be unset.
func gatewayText(gw netip.Addr) string {
	if !gw.IsValid() {
		return "none"
	}
	return gw.String()
}

// Single returns the network of one address alone; the zero Prefix for the zero Addr.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
