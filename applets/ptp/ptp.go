// Package ptp is the CNI plugin ptp: veth pair between container and host, routed: no bridge, no common segment.
package ptp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/applets/netfilter"
	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "ptp",
	Conf:    conf{},
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
	Verbs: func() spec.Verbs {
		return attach.Verbs(attach.Interface[*pair]{
			Kind: "veth", IPAM: attach.Required, Validate: (*pair).validate,
			Resources: func(*pair) spec.Resources { return spec.Resources{Routed: true} },
			Create:    create,
			Resolve:   func(_ context.Context, op *attach.Op, _ *pair) error { return op.CheckGateways() },
			Configure: configure, Setup: setup, Ready: ready,
			Verify: verify, Describe: describe, Probe: probe,
			Remove:  func(_ context.Context, op *attach.Op, _ *pair) error { return op.RemoveVeth() },
			Cleanup: func(ctx context.Context, op *attach.Op, _ *pair) error { return netfilter.Release(ctx, op, kinds) },
			Collect: func(ctx context.Context, op *attach.Op, _ *pair) error { return netfilter.Collect(ctx, op, kinds) },
			Restore: restore, Routes: gatewayRoutes,
		})
	},
}

// kinds is what a pair owns in the rule set.
// DEL releases it also without namespace and link.
var kinds = []nft.Kind{nft.KindMasquerade}

// A pair is the veth pair of an attachment: the configuration, and the host-side veth once it
// exists.
type pair struct {
	conf
	host *rtnl.Link
}

// conf are the keys; Help describes each. The zero value of each key is its default.
type conf struct {
	netfilter.MasqConf
	MTU int `json:"mtu"` // bytes; 0: the kernel's choice
}

// validate checks the keys.
func (c *conf) validate() error {
	if c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535) {
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 68 to 65535`, c.MTU)
	}
	return c.CheckBackend()
}

// create creates the pair. No other host is on its segment, so the link-local address of the
// host-side veth needs no duplicate detection, during which nothing would be forwarded.
func create(_ context.Context, op *attach.Op, c *pair) (err error) {
	c.WarnBackend(op)
	if c.host, err = op.CreateVeth(c.MTU, 0); err != nil {
		return err
	}
	op.AddInterface(attach.HostInterface(c.host))
	op.Container = op.AddInterface(op.ContainerInterface())
	return attach.SkipDAD(op, c.host.Name)
}

// configure adds the container's addresses without the routes to their networks, which are reached
// through the gateways.
func configure(ctx context.Context, op *attach.Op, _ *pair) error {
	if err := op.SetAddresses(ctx, false); err != nil {
		return err
	}
	if err := addGatewayRoutes(op); err != nil {
		return err
	}
	return op.AddRoutes()
}

// addGatewayRoutes adds the routes. The kernel has one route to a gateway, so two interfaces of a
// container cannot share it: the code is 100.
func addGatewayRoutes(op *attach.Op) error {
	var ops []rtnl.Op
	for _, r := range gatewayRoutes(op) {
		ops = append(ops, rtnl.NewRoute(r))
	}
	err := op.Cont.Do(ops...)
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
func gatewayRoutes(op *attach.Op) []rtnl.Route {
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
	// all gateways before the first network, as one may be in that of another
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

// scopeHost is RT_SCOPE_HOST, include/uapi/linux/rtnetlink.h, the scope of the reference's routes
// to containers. IPv6 routes have no scope.
const scopeHost = 254

// setup adds the gateway addresses, as /32 or /128, to the host-side veth, and the routes to the
// container. The kernel deletes them with the link.
func setup(ctx context.Context, op *attach.Op, c *pair) error {
	err := op.Host.Do(gatewayOps(op.Result.IPs, c.host.Index)...)
	if errors.Is(err, os.ErrExist) {
		return spec.Errorf(spec.CodeBusy, "an address is another container's, the host has a route to it: DEL that one, or have \"ipam\" give another address: %w", err)
	}
	if err != nil {
		return fmt.Errorf("host-side veth %s: %w", c.host.Name, attach.WithoutIPv6(err, c.host.Name))
	}
	return c.AddMasquerade(ctx, op, kinds)
}

// gatewayOps adds each gateway once. A route that exists already is an error: it is that of another
// container.
func gatewayOps(ips []spec.IP, link uint32) []rtnl.Op {
	var addrs, routes []rtnl.Op
	for i, ip := range ips {
		if !slices.ContainsFunc(ips[:i], func(b spec.IP) bool { return b.Gateway == ip.Gateway }) {
			addrs = append(addrs, rtnl.NewAddr(link, rtnl.Addr{Prefix: attach.Single(ip.Gateway), NoDAD: true}))
		}
		routes = append(routes, routeTo(attach.Single(ip.Address.Addr()), link))
	}
	return append(addrs, routes...)
}

// routeTo is the route to an address of the container.
func routeTo(dst netip.Prefix, link uint32) rtnl.Op {
	r := rtnl.Route{Dst: dst, Link: link}
	if dst.Addr().Is4() {
		r.Scope = new(uint8(scopeHost))
	}
	return rtnl.NewRoute(r)
}

// ready waits for the host-side veth, then enables forwarding, as the last step, and disables it
// again if the ADD fails and no other attachment needs it.
func ready(ctx context.Context, op *attach.Op, c *pair) error {
	if err := op.WaitHostVeth(ctx, c.host); err != nil {
		return err
	}
	return attach.SwitchForwarding(op, func(restore func() error) error {
		links, err := op.Host.Links()
		if err != nil {
			return err
		}
		for _, l := range links {
			if key := spec.LabelKey(l.Alias); key != "" && key != op.Key() {
				return nil
			}
		}
		return restore()
	})
}

// verify checks the routes by way of the gateway, and the host's side: the host-side veth, its
// gateway addresses, the routes to the container, masquerading and forwarding.
func verify(_ context.Context, op *attach.Op, c *pair) error {
	if err := checkGatewayRoutes(op); err != nil {
		return err
	}
	host, err := op.HostVeth()
	if err != nil {
		return attach.Lost("host interface: %w", err)
	}
	if host.Parent != op.Link.Index || op.Link.Parent != host.Index {
		return attach.Lost("%s is not the peer of %s in %s", host.Name, op.IfName, op.Call.NetNS)
	}
	if !host.Up {
		return attach.Mismatch("%s is down", host.Name)
	}
	if err := checkHost(op, host); err != nil {
		return err
	}
	return cmp.Or(c.CheckMasquerade(op), attach.CheckForwarding(op))
}

// checkGatewayRoutes looks for a route to each gateway on the container's link, in any table: sbr
// or vrf may have moved it.
func checkGatewayRoutes(op *attach.Op) error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	for _, ip := range op.Own() {
		direct := slices.ContainsFunc(have, func(r rtnl.Route) bool { return r.Dst == attach.Single(ip.Gateway) && !r.GW.IsValid() })
		if ip.Gateway.IsValid() && !direct {
			return attach.Mismatch("route to gateway %s is missing on %s in %s", ip.Gateway, op.IfName, op.Call.NetNS)
		}
	}
	return nil
}

// checkHost compares what is on the host-side veth with the result.
func checkHost(op *attach.Op, host *rtnl.Link) error {
	addrs, err := op.Host.Addrs(host.Index)
	if err != nil {
		return err
	}
	routes, err := op.Host.Routes(rtnl.RouteFilter{Link: host.Index})
	if err != nil {
		return err
	}
	for _, ip := range op.Own() {
		if ip.Gateway.IsValid() && !attach.HasAddr(addrs, attach.Single(ip.Gateway)) {
			return attach.Mismatch("%s does not have the gateway address %s", host.Name, ip.Gateway)
		}
		if dst := attach.Single(ip.Address.Addr()); !slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Dst == dst && !r.GW.IsValid() }) {
			return attach.Mismatch("route to %s by way of %s is missing on the host", dst, host.Name)
		}
	}
	return nil
}

// describe enters both veths into the result of GET.
func describe(_ context.Context, op *attach.Op, c *pair) (err error) {
	if c.host, err = op.HostVeth(); err != nil {
		return err
	}
	op.AddInterface(attach.HostInterface(c.host))
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// probe reports whether the kernel can masquerade, if that is configured.
func probe(_ context.Context, _ *spec.Request, c *pair) error {
	if !c.IPMasq {
		return nil
	}
	return nft.Open(netns.Host()).Probe()
}
