package attach

import (
	"errors"
	"net/netip"
	"os"

	"cnibox/rtnl"
	"cnibox/spec"
)

// CheckGateways wants a gateway of its family for each address of the result, and one
// that is not the address itself: without it nothing could be reached.
// The code is 7, for the address plugin's configuration is what has to change.
func (op *Op) CheckGateways() error {
	for _, ip := range op.Result.IPs {
		own, gw := ip.Address.Addr(), ip.Gateway
		if !gw.IsValid() || gw.Is4() != own.Is4() || gw == own {
			return spec.Errorf(spec.CodeConfig, "%s: address %s needs a gateway of its own family: configure one in \"ipam\" (%q gave %q)",
				op.Net.Type, ip.Address, op.Net.IPAM.Type, gatewayText(gw))
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
// needs none, and one that the result has a route for gets that one.
func (op *Op) gatewayRoutes() []rtnl.Op {
	var ops []rtnl.Op
	seen := map[netip.Prefix]bool{}
	for _, r := range op.Result.Routes {
		if table := r.Table; table == nil || *table == 0 {
			seen[r.Dst.Masked()] = true
		}
	}
	// All gateways before the first network, as one may lie in another's.
	for _, ip := range op.Result.IPs {
		if dst := Single(ip.Gateway); !seen[dst] {
			seen[dst] = true
			ops = append(ops, rtnl.NewRoute(rtnl.Route{Dst: dst, Src: ip.Address.Addr(), Link: op.Link.Index}))
		}
	}
	for _, ip := range op.Result.IPs {
		if dst := ip.Address.Masked(); !ip.Address.IsSingleIP() && !seen[dst] {
			seen[dst] = true
			ops = append(ops, rtnl.NewRoute(rtnl.Route{Dst: dst, GW: ip.Gateway, Src: ip.Address.Addr(), Link: op.Link.Index}))
		}
	}
	return ops
}

// CheckGatewayRoutes wants a route to each gateway on the container end.
// CHECK has prevResult in place of the result.
func (op *Op) CheckGatewayRoutes() error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index})
	if err != nil {
		return err
	}
	direct := map[netip.Prefix]bool{}
	for _, r := range have {
		direct[r.Dst] = direct[r.Dst] || !r.GW.IsValid()
	}
	for _, ip := range op.Prev.IPs {
		if op.Mine(ip) && ip.Gateway.IsValid() && !direct[Single(ip.Gateway)] {
			return Mismatch("route to gateway %s is missing on %s in %s", ip.Gateway, op.IfName, op.Call.NetNS)
		}
	}
	return nil
}

// Single is the network of one address alone.
// It is no prefix for an address that is none.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
