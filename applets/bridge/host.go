package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"cnibox/applets/attach"
	"cnibox/applets/netfilter"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// setup makes the host the network's gateway and masquerades it.
// Rules are last, since they are one transaction.
func setup(ctx context.Context, op *attach.Op, c *port) error {
	if c.IsGateway && len(op.Result.IPs) > 0 {
		if err := setGateways(ctx, op, c); err != nil {
			return err
		}
	}
	return addRules(ctx, op, c)
}

// addRules masquerades, and makes a gateway the only router of its port.
func addRules(ctx context.Context, op *attach.Op, c *port) error {
	if !c.IsGateway {
		return c.AddMasquerade(ctx, op, kinds)
	}
	return addGatewayRules(ctx, op, c)
}

// addGatewayRules masquerades, and drops router advertisements of the container, which its
// neighbours would accept, in one transaction. On a kernel without bridge tables it only
// masquerades.
func addGatewayRules(ctx context.Context, op *attach.Op, c *port) error {
	table := nft.Open(op.Call.HostNS())
	op.Undo("rules of the gateway", func(ctx context.Context) error {
		if err := netfilter.Undo(ctx, op, table, kinds); !netfilter.IsMissing(err) {
			return err
		}
		return nil
	})
	return table.UpdateThen(ctx, func(x *nft.Tx) error {
		x.NoAdverts(op.Attachment, c.host.Name)
		if !c.IPMasq {
			return nil
		}
		return netfilter.Masquerade(op, op.Result.IPs)(x)
	}, func(ctx context.Context, err error) error {
		if !netfilter.IsMissing(err) {
			return err
		}
		op.Warn("router advertisements of this container may reach its neighbours: %v", err)
		return c.AddMasquerade(ctx, op, kinds)
	})
}

// ready waits for the port, which drops the announcement of the addresses before it forwards, then
// enables forwarding: last, since others may need it as soon as it is on.
func ready(ctx context.Context, op *attach.Op, c *port) error {
	if c.DisableContainerInterface {
		return nil
	}
	if err := op.WaitHostVeth(ctx, c.host); err != nil {
		return fmt.Errorf("bridge port in error state: %s in %s: %w", c.host.Name, c.Bridge, err)
	}
	if !c.IsGateway {
		return nil
	}
	return attach.SwitchForwarding(op, func(restore func() error) error { return whileUnused(op, c.link.Index, nil, restore) })
}

// setGateways adds each gateway address to the bridge, or to the interface of its VLAN, with the
// prefix length of the container's, which gives the host its route.
func setGateways(ctx context.Context, op *attach.Op, c *port) error {
	gw, err := c.link, error(nil)
	if c.VLAN != 0 {
		if gw, err = ensureVLANGateway(op, c); err != nil {
			return err
		}
		op.AddInterface(attach.HostInterface(gw))
	}
	have, err := op.Host.Addrs(gw.Index)
	if err != nil {
		return err
	}
	var want []netip.Prefix
	for _, ip := range op.Result.IPs {
		want = append(want, netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
	}
	ops, err := gatewayOps(ctx, op, c, gw, have, want)
	if err != nil || ops == nil {
		return err
	}
	op.Undo("addresses of "+gw.Name, func(context.Context) error { return restoreAddrs(op, c, gw.Index, have) })
	if !c.made { // its ports do not change it then
		ops = append(ops, rtnl.ChangeLink(gw.Index, rtnl.LinkChange{MAC: gw.MAC}))
	}
	if err := op.Host.Do(ops...); err != nil {
		return attach.WithoutIPv6(err, gw.Name)
	}
	for i, w := range want {
		if !attach.HasAddr(have, w) && !contains(want[:i], w) {
			op.Did("address %s added to %s", w, gw.Name)
		}
	}
	return nil
}

// prepare makes the bridge, before there is an attachment. A gateway gets the address of the first
// range of each family, unless it has one of that family, as that of another range.
func prepare(ctx context.Context, op *attach.Op, c *port) error {
	if err := ensureBridge(op, c); err != nil || !c.IsGateway || op.Net.IPAM.Type == "" {
		return err
	}
	resources, err := op.Validate(op.Net.IPAM.Type)
	if err != nil {
		return err
	}
	have, err := op.Host.Addrs(c.link.Index)
	if err != nil {
		return err
	}
	given := map[bool]bool{} // by Is4
	for _, h := range have {
		given[h.Prefix.Addr().Is4()] = given[h.Prefix.Addr().Is4()] || !h.Prefix.Addr().IsLinkLocalUnicast()
	}
	for _, r := range resources.Ranges {
		gw := r.Gateway
		if !gw.IsValid() {
			gw = r.Subnet.Masked().Addr().Next()
		}
		if !given[gw.Is4()] {
			given[gw.Is4()] = true
			op.Result.IPs = append(op.Result.IPs, spec.IP{Address: netip.PrefixFrom(gw, r.Subnet.Bits()), Gateway: gw})
		}
	}
	if op.Result.IPs == nil {
		return nil
	}
	return setGateways(ctx, op, c)
}

// gatewayOps adds the addresses that are missing. Another IPv4 address, or an IPv6 one of an
// overlapping subnet, conflicts with them. It is deleted with forceAddress, and where nothing uses its
// subnet any more.
func gatewayOps(ctx context.Context, op *attach.Op, c *port, gw *rtnl.Link, have []rtnl.Addr, want []netip.Prefix) ([]rtnl.Op, error) {
	var ops []rtnl.Op
	var stale []netip.Prefix
	for _, h := range have {
		w, conflict := conflicting(h.Prefix, want)
		if !conflict {
			continue
		}
		if !c.ForceAddress {
			user, err := userOf(ctx, op.Host, op.Request, c.link, gw, h.Prefix)
			if err != nil {
				return nil, err
			}
			if user != "" {
				return nil, spec.Errorf(spec.CodeConfig, "%q already has an IP address different from %s", gw.Name, w).
					WithDetails("%s", advice(gw.Name, h.Prefix, user))
			}
			stale = append(stale, h.Prefix)
		}
		// Backwards: deleting one may delete later ones, see [rtnl.DropAddr].
		ops = append([]rtnl.Op{rtnl.DropAddr(gw.Index, h)}, ops...)
	}
	if stale != nil {
		op.Warn("%s had the address of a subnet that nothing uses any more, %s: replaced by %s", gw.Name, stale, want)
	}
	drops := ops != nil
	for i, w := range want {
		if (drops || !attach.HasAddr(have, w)) && !contains(want[:i], w) {
			// another ADD may add the same
			ops = append(ops, rtnl.ReplaceAddr(gw.Index, rtnl.Addr{Prefix: w, NoDAD: true}))
		}
	}
	return ops, nil
}

// conflicting reports whether an address of the bridge conflicts with the gateways, and with which.
// The gateways of one result do not conflict.
func conflicting(have netip.Prefix, want []netip.Prefix) (netip.Prefix, bool) {
	if contains(want, have) || have.Addr().IsLinkLocalUnicast() {
		return netip.Prefix{}, false
	}
	for _, w := range want {
		if w.Addr().Is4() == have.Addr().Is4() && (have.Addr().Is4() || w.Overlaps(have)) {
			return w, true
		}
	}
	return netip.Prefix{}, false
}

// contains reports whether a prefix, with its host bits, is in a list.
func contains(list []netip.Prefix, p netip.Prefix) bool {
	for _, l := range list {
		if l == p {
			return true
		}
	}
	return false
}

// restoreAddrs restores the addresses of the gateway's link. Deleted ones are added again in any
// case, since older ports need them. Added ones are deleted unless other ports use them: any port,
// or, where they had replaced another address, only newer ports, with higher indexes. Link-local
// addresses are the kernel's.
func restoreAddrs(op *attach.Op, c *port, index uint32, was []rtnl.Addr) error {
	now, err := op.Host.Addrs(index)
	if err != nil {
		return err
	}
	var added, taken []rtnl.Op
	for _, a := range now {
		if !attach.HasAddr(was, a.Prefix) && !a.Prefix.Addr().IsLinkLocalUnicast() {
			added = append(added, rtnl.DropAddr(index, a))
		}
	}
	for _, a := range was {
		if !attach.HasAddr(now, a.Prefix) {
			taken = append(taken, rtnl.NewAddr(index, a))
		}
	}
	others := func(l *rtnl.Link) bool { return taken == nil || l.Index > c.host.Index }
	err = whileUnused(op, c.link.Index, others, func() error { return op.Host.Do(added...) })
	return errors.Join(err, op.Host.Do(taken...))
}

// whileUnused undoes a change to a bridge unless ports of other attachments use it: those for which
// others is true; nil: all.
func whileUnused(op *attach.Op, bridge uint32, others func(*rtnl.Link) bool, undo func() error) error {
	links, err := op.Host.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Master == bridge && spec.LabelKey(l.Alias) != op.Key() && (others == nil || others(&l)) {
			return nil
		}
	}
	return undo()
}

// dropUnusedBridge deletes a bridge that this ADD created, unless it has other ports by now.
func dropUnusedBridge(op *attach.Op, index uint32) error {
	return whileUnused(op, index, nil, func() error { return op.Host.Do(rtnl.DropLink(index)) })
}

// cleanup runs on each DEL: the configuration may have had ipMasq at the ADD and
// not now.
func cleanup(ctx context.Context, op *attach.Op, _ *port) error {
	return netfilter.Release(ctx, op, kinds)
}

// collect deletes what stale attachments own in the rule set.
func collect(ctx context.Context, op *attach.Op, _ *port) error {
	return netfilter.Collect(ctx, op, kinds)
}

// describe enters the interfaces of a live port into the result of GET.
// The port need not be in a bridge any more.
func describe(_ context.Context, op *attach.Op, c *port) error {
	host, err := op.HostVeth()
	if err != nil {
		return err
	}
	if br, err := op.Host.LinkAt(host.Master); err == nil {
		op.AddInterface(attach.HostInterface(br))
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("bridge of %s: %w", host.Name, err)
	}
	op.AddInterface(attach.HostInterface(host))
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}
