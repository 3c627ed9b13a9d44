package ptp

import (
	"context"
	"fmt"
	"slices"

	"cnibox/applets/attach"
	"cnibox/internal/once"
	"cnibox/rtnl"
)

// restore brings the host-side veth up, with its addresses and the routes to the container,
// all of which a link that was set down, or flushed, has lost; then forwarding and the rules.
func restore(ctx context.Context, op *attach.Op, c *pair) (err error) {
	if c.host, err = op.HostVeth(); err != nil {
		return attach.Lost("host interface: %w", err)
	}
	if c.host.AcceptsRA {
		if err := op.IgnoreRouters(c.host.Name); err != nil {
			return err
		}
	}
	if !c.host.Up {
		if err := op.Host.Do(rtnl.ChangeLink(c.host.Index, rtnl.LinkChange{Up: new(true)})); err != nil {
			return err
		}
		op.Did("%s up", c.host.Name)
	}
	if err := restoreRoutes(op, c.host); err != nil {
		return err
	}
	forward := func() error { return attach.SwitchForwarding(op, func(func() error) error { return nil }) }
	key := "forwarding"
	for _, ip := range op.Result.IPs {
		key += fmt.Sprint(" ", ip.Gateway.Is4(), ip.Gateway.Is6())
	}
	if err := once.Do(ctx, key, forward); err != nil {
		return err
	}
	return c.AddMasquerade(ctx, op, kinds)
}

// restoreRoutes adds the addresses and routes that the host-side veth lacks. A route to a
// container's address that leads elsewhere is an error.
func restoreRoutes(op *attach.Op, host *rtnl.Link) error {
	addrs, err := op.Host.Addrs(host.Index)
	if err != nil {
		return err
	}
	routes, err := op.Host.Routes(rtnl.RouteFilter{Link: host.Index})
	if err != nil {
		return err
	}
	var ops []rtnl.Op
	var did []string
	for _, ip := range op.Result.IPs {
		if gw := attach.Single(ip.Gateway); ip.Gateway.IsValid() && !attach.HasAddr(addrs, gw) {
			ops = append(ops, rtnl.ReplaceAddr(host.Index, rtnl.Addr{Prefix: gw, NoDAD: true}))
			did = append(did, fmt.Sprintf("address %s added to %s", gw.Addr(), host.Name))
		}
	}
	for _, ip := range op.Result.IPs {
		dst := attach.Single(ip.Address.Addr())
		if !slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Dst == dst && !r.GW.IsValid() }) {
			ops = append(ops, routeTo(dst, host.Index))
			did = append(did, fmt.Sprintf("route %s dev %s added", dst.Addr(), host.Name))
		}
	}
	err = op.Host.Do(ops...)
	for _, text := range did {
		if err == nil {
			op.Did("%s", text)
		}
	}
	return attach.WithoutIPv6(err, host.Name)
}
