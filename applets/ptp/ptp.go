// Package ptp is the CNI plugin ptp: veth pair between container and host, routed: no bridge, no common segment.
package ptp

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "ptp",
	Conf:    plugin{},
	Summary: "veth pair between container and host, routed: no bridge, no common segment",
	Help: `
key            type    default  meaning
ipMasq         bool    false    masquerades what leaves the network
ipMasqBackend  string  -        iptables or nftables; both mean nftables
mtu            int     0        bytes of both veths, 68 to 65535; 0: the kernel's
ipam           object  -        IPAM plugin, named by its "type"; required; every address
                                needs a gateway
dns            object  -        nameservers, domain, search, options; replaces ipam's
mac            string  random   address of the container-side veth

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.

The host-side veth has the gateway addresses, and the host a route to each address of the
container. All traffic of the container, also within its subnet, is routed by the host. Addresses
may be of one subnet, have one gateway, or be single ones (/32, /128).`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true},
	Kind:  "veth", IPAM: attach.Required, Veth: true, Rules: []nft.Kind{nft.KindMasquerade},
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each. The zero value of each key is its default.
type plugin struct {
	attach.Defaults
	attach.MasqConf
	MTU int `json:"mtu"` // bytes; 0: the kernel's choice
}

// Validate checks the keys.
func (p *plugin) Validate(*spec.Request) error {
	if p.MTU != 0 && (p.MTU < 68 || p.MTU > 65535) {
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 68 to 65535`, p.MTU)
	}
	return p.CheckBackend()
}

// Resources are that the host routes for the link.
func (*plugin) Resources() spec.Resources { return spec.Resources{Routed: true} }

// Link creates the pair. Its segment has no other hosts, so the link-local address of the host-side
// veth needs no duplicate detection, during which the host would not forward.
func (p *plugin) Link(op *attach.Op) error {
	p.WarnBackend(op)
	if err := op.CreateVeth(p.MTU, 0); err != nil {
		return err
	}
	return op.SkipDAD(op.Veth.Name)
}

// Gateways checks that every address has a gateway.
func (*plugin) Gateways(op *attach.Op) error { return op.CheckGateways() }

// Routes returns a direct route to each gateway, and a route to the network of each address through
// its gateway. Addresses with the same network or gateway share these routes. An address with a
// full-length prefix needs no network route, and a network for which the result has a route gets
// that route.
func (*plugin) Routes(op *attach.Op) []rtnl.Route {
	var routes []rtnl.Route
	var seen []netip.Prefix
	add := func(r rtnl.Route) {
		if slices.Contains(seen, r.Dst) {
			return
		}
		seen = append(seen, r.Dst)
		r.Link = op.Link.Index
		routes = append(routes, r)
	}
	// all gateways before the first network: a gateway may be in the network of another
	for _, ip := range op.Result.IPs {
		add(rtnl.Route{Dst: attach.Single(ip.Gateway), Src: ip.Address.Addr()})
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
	return routes
}

// Release deletes the elements for the addresses.
func (p *plugin) Release(op *attach.Op) error { return op.ReleaseRules(p.Known(op)) }

// Host adds the gateway addresses to the host-side veth, as /32 or /128, and the routes to the
// container. The kernel deletes all of these when the link is set down or deleted. Then Host adds
// masquerading. A route that leads to another link is another container's.
func (p *plugin) Host(op *attach.Op) error {
	if err := op.SetVethUp(); err != nil {
		return err
	}
	var addrs []rtnl.Addr
	var routes []rtnl.Route
	for _, ip := range op.Result.IPs {
		if ip.Gateway.IsValid() {
			addrs = append(addrs, rtnl.Addr{Prefix: attach.Single(ip.Gateway), NoDAD: true})
		}
		routes = append(routes, routeTo(ip))
	}
	err := op.ConfigureVeth(addrs, routes)
	if errors.Is(err, os.ErrExist) {
		return spec.Errorf(spec.CodeBusy, "an address is another container's, the host has a route to it: DEL that one, or have \"ipam\" give another address: %w", err)
	}
	if err != nil {
		return err
	}
	return p.AddMasquerade(op)
}

// scopeHost is RT_SCOPE_HOST, include/uapi/linux/rtnetlink.h, the scope of the reference's routes
// to containers. IPv6 routes have no scope.
const scopeHost = 254

// routeTo returns the host's route to an address of the container.
func routeTo(ip spec.IP) rtnl.Route {
	r := rtnl.Route{Dst: attach.Single(ip.Address.Addr())}
	if r.Dst.Addr().Is4() {
		r.Scope = new(uint8(scopeHost))
	}
	return r
}

// Check looks for the routes to the gateways, in any table, since sbr or vrf may have moved them,
// and for what Host adds.
func (p *plugin) Check(op *attach.Op) error {
	inside, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	for _, ip := range op.OwnAddresses() {
		if ip.Gateway.IsValid() && !rtnl.HasRoute(inside, attach.Single(ip.Gateway)) {
			return attach.Mismatch("route to gateway %s is missing on %s in %s", ip.Gateway, op.IfName, op.Call.NetNS)
		}
	}
	return cmp.Or(checkHost(op), p.CheckMasquerade(op))
}

// checkHost compares the addresses and routes of the host-side veth with the result.
func checkHost(op *attach.Op) error {
	addrs, err := op.Host.Addrs(op.Veth.Index)
	if err != nil {
		return err
	}
	routes, err := op.Host.Routes(rtnl.RouteFilter{Link: op.Veth.Index})
	if err != nil {
		return err
	}
	for _, ip := range op.OwnAddresses() {
		if ip.Gateway.IsValid() && !attach.HasAddr(addrs, attach.Single(ip.Gateway)) {
			return attach.Mismatch("%s does not have the gateway address %s", op.Veth.Name, ip.Gateway)
		}
		if dst := attach.Single(ip.Address.Addr()); !rtnl.HasRoute(routes, dst) {
			return attach.Mismatch("route to %s by way of %s is missing on the host", dst, op.Veth.Name)
		}
	}
	return nil
}

// Probe checks that the kernel can masquerade, if that is configured.
func (p *plugin) Probe(op *attach.Op) error {
	if !p.IPMasq {
		return nil
	}
	return op.Rules().Probe()
}
