package attach

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"cnibox/rtnl"
	"cnibox/spec"
)

// CheckGateways wants a gateway of its family for each address of the result, one that a
// link can have and that is neither one of these addresses nor a broadcast address:
// without it nothing could be reached.
// The code is 7, for the address plugin's configuration is what has to change.
func (op *Op) CheckGateways() error {
	for _, ip := range op.Result.IPs {
		net, gw := ip.Address, ip.Gateway
		usable := gw.IsGlobalUnicast() || gw.IsLinkLocalUnicast()
		own := slices.ContainsFunc(op.Result.IPs, func(o spec.IP) bool { return o.Address.Addr() == gw })
		broadcast := gw.Is4() && net.Bits() < 31 && net.Contains(gw) && !net.Contains(gw.Next())
		if !usable || own || broadcast || gw.Is4() != net.Addr().Is4() {
			return spec.Errorf(spec.CodeConfig, "%s: address %s needs a gateway of its own family, an address of another host: set \"gateway\" in \"ipam\" (%q), which is %s now",
				op.Net.Type, net, op.Net.IPAM.Type, gatewayText(gw))
		}
	}
	return nil
}

// gatewayText is a gateway for people, who need not know what an invalid one is.
func gatewayText(gw netip.Addr) string {
	if !gw.IsValid() {
		return "none"
	}
	return gw.String()
}

// addGatewayRoutes makes the routes. The kernel keeps one route to a gateway, so two
// interfaces of a container cannot share one: the code is 100.
func (op *Op) addGatewayRoutes() error {
	err := op.Cont.Do(op.gatewayRoutes()...)
	if errors.Is(err, os.ErrExist) {
		return spec.Errorf(spec.CodeBusy, "%s: another interface of the container has a route to the same gateway or network; configure another gateway: %w",
			op.IfName, err)
	}
	return err
}

// gatewayRoutes lead to each gateway directly, and to the network of each address by
// way of its gateway. Addresses of one network and those with one gateway share them.
// The addresses come without routes of their own. An address that is its own network
// needs none, and a network that the result has a route for gets that one.
func (op *Op) gatewayRoutes() []rtnl.Op {
	var ops []rtnl.Op
	var seen []netip.Prefix
	add := func(r rtnl.Route) {
		if slices.Contains(seen, r.Dst) {
			return
		}
		seen = append(seen, r.Dst)
		r.Link = op.Link.Index
		ops = append(ops, rtnl.NewRoute(r))
	}
	// All gateways before the first network, as one may lie in another's.
	for _, ip := range op.Result.IPs {
		add(rtnl.Route{Dst: Single(ip.Gateway), Src: ip.Address.Addr()})
	}
	for _, r := range op.Result.Routes {
		if r.Table == nil || *r.Table == 0 {
			seen = append(seen, r.Dst.Masked())
		}
	}
	for _, ip := range op.Result.IPs {
		if !ip.Address.IsSingleIP() {
			add(rtnl.Route{Dst: ip.Address.Masked(), GW: ip.Gateway, Src: ip.Address.Addr()})
		}
	}
	return ops
}

// CheckGatewayRoutes wants a route to each gateway on the container end.
// CHECK has prevResult in place of the result. The route may be in another table, where
// sbr or vrf has put it.
func (op *Op) CheckGatewayRoutes() error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	for _, ip := range op.Own() {
		direct := slices.ContainsFunc(have, func(r rtnl.Route) bool { return r.Dst == Single(ip.Gateway) && !r.GW.IsValid() })
		if ip.Gateway.IsValid() && !direct {
			return Mismatch("route to gateway %s is missing on %s in %s", ip.Gateway, op.IfName, op.Call.NetNS)
		}
	}
	return nil
}

// Single is the network of one address alone.
// It is no prefix for an address that is none.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
