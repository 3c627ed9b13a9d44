package attach

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cnibox/rtnl"
	"cnibox/spec"
)

// restore restores the lease, what the container has lost, and then what the host has. An address
// that is another's by now is not used: nothing else is restored then.
func (p *Interface[P]) restore(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err = cmp.Or(err, r.CheckIndexes()); err != nil {
		return err
	}
	op, err := enter(ctx, r)
	if err != nil {
		return err
	}
	defer op.close()
	op.DAD = is(p.Shared, c)
	op.Result.IPs, op.Result.Routes = op.Own(), slices.Clone(op.Prev.Routes)
	lease := op.restoreLease(ctx)
	if errors.Is(lease, spec.ErrAnew) {
		return lease
	}
	inside := p.restoreInside(op, c)
	if errors.Is(inside, spec.ErrAnew) {
		return errors.Join(lease, inside)
	}
	return errors.Join(lease, inside, p.Restore.run(ctx, op, c))
}

// restoresLease reports whether the IPAM plugin has a RESTORE. That of another program has none.
func (op *Op) restoresLease() bool {
	verbs, err := op.Invoker.Find(op.Net.IPAM.Type)
	return err == nil && verbs != nil && verbs.Restore != nil
}

// restoreLease runs RESTORE of the IPAM plugin.
func (op *Op) restoreLease(ctx context.Context) error {
	if op.Net.IPAM.Type == "" || !op.restoresLease() {
		return nil
	}
	return op.delegate(ctx, spec.Restore)
}

// restoreInside sets the container's link up, and adds the addresses and routes of prevResult that
// CHECK would miss. What else the container has stays.
func (p *Interface[P]) restoreInside(op *Op, c P) (err error) {
	if !p.hasNetdev(c) {
		return nil
	}
	op.Link, err = op.Cont.Link(op.IfName)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Lost("no interface %s in %s", op.IfName, op.Call.NetNS)
	case err != nil:
		return err
	case p.Kind != "" && op.Link.Kind != p.Kind || op.foreign(op.Link):
		return Lost("interface %s in %s is not of this attachment: kind %q, alias %q", op.IfName, op.Call.NetNS, op.Link.Kind, op.Link.Alias)
	case is(p.Down, c):
		return nil
	}
	if !op.Link.Up {
		if err := op.Cont.Do(rtnl.ChangeLink(op.Link.Index, rtnl.LinkChange{Up: new(true)})); err != nil {
			return op.explainInUse(err)
		}
		op.Did("%s up", op.IfName)
	}
	if err := op.restoreAddrs(p.Routes == nil); err != nil {
		return err
	}
	if p.Routes != nil {
		if err := op.restoreOwnRoutes(p.Routes(op)); err != nil {
			return err
		}
	}
	return op.restoreRoutes()
}

// restoreAddrs adds the addresses that the container's link lacks. It does not wait for duplicate
// detection: CHECK reports a duplicate.
func (op *Op) restoreAddrs(prefixRoutes bool) error {
	missing, err := op.missingAddrs()
	if err != nil || len(missing) == 0 {
		return err
	}
	if slices.ContainsFunc(missing, func(ip spec.IP) bool { return ip.Address.Addr().Is6() }) {
		if err := op.NS.SetSysctls(op.sysctls()...); err != nil {
			return err
		}
	}
	var ops []rtnl.Op
	for _, ip := range missing {
		ops = append(ops, rtnl.ReplaceAddr(op.Link.Index, op.address(ip, prefixRoutes)))
	}
	if err := op.Cont.Do(ops...); err != nil {
		return op.explainInUse(err)
	}
	for _, ip := range missing {
		op.Did("address %s added to %s", ip.Address, op.IfName)
	}
	op.announce()
	return nil
}

// restoreOwnRoutes adds the routes that the container's link lacks, whatever table they are in: sbr
// or vrf may have moved them. One of IPv6 that has outlived its address has lost its source.
func (op *Op) restoreOwnRoutes(want []rtnl.Route) error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	for _, w := range want {
		is := func(h rtnl.Route) bool {
			return h.Dst == w.Dst && h.GW == w.GW && (h.Src == w.Src || h.Table != unix.RT_TABLE_MAIN)
		}
		if slices.ContainsFunc(have, is) {
			continue
		}
		if err := op.Cont.Do(rtnl.ReplaceRoute(w)); err != nil {
			return err
		}
		op.Did("route %s added", routeText(spec.Route{Dst: w.Dst, GW: w.GW}))
	}
	return nil
}

// restoreRoutes adds the routes of prevResult that are missing.
func (op *Op) restoreRoutes() error {
	missing, err := op.missingRoutes()
	if err != nil || len(missing) == 0 {
		return err
	}
	op.Result.Routes = missing
	if err := op.restoreNetworks(); err != nil {
		return err
	}
	err = op.AddRoutes()
	if rtnl.BadGateway(err) {
		err = spec.Anew(err)
	}
	if err == nil {
		for _, r := range op.Result.Routes {
			op.Did("route %s added", routeText(r))
		}
	}
	op.Result.Routes = slices.Clone(op.Prev.Routes)
	return err
}

// kernelMetric6 is IP6_RT_PRIO_ADDRCONF, include/uapi/linux/ipv6_route.h: that of the kernel's own routes.
const kernelMetric6 = 256

// restoreNetworks adds the routes to the link's own networks by which the gateways of op.Result.Routes
// are reached, where no table has them any more: sbr has moved them to the tables of these routes.
func (op *Op) restoreNetworks() error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	reached := func(table int, dst netip.Prefix) bool {
		return slices.ContainsFunc(have, func(h rtnl.Route) bool {
			return h.Dst == dst && (h.Table == table || h.Table == 0 || h.Table == unix.RT_TABLE_MAIN)
		})
	}
	for _, r := range op.Result.Routes {
		want := op.route(r)
		for _, ip := range op.Result.IPs {
			network := rtnl.Route{Dst: ip.Address.Masked(), Link: op.Link.Index, Table: want.Table, Protocol: unix.RTPROT_KERNEL}
			if want.Table == 0 || !network.Dst.Contains(want.GW) || reached(want.Table, network.Dst) {
				continue
			}
			if ip.Address.Addr().Is4() {
				network.Src = ip.Address.Addr()
			} else {
				network.Priority = kernelMetric6
			}
			if err := op.Cont.Do(rtnl.ReplaceRoute(network)); err != nil {
				return err
			}
			have = append(have, network)
			op.Did("route %s table %d added", network.Dst, network.Table)
		}
	}
	return nil
}

// prepare runs the plugin's step.
func (p *Interface[P]) prepare(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err != nil {
		return err
	}
	op, err := open(ctx, r, nil)
	if err != nil {
		return err
	}
	defer op.close()
	return p.Prepare(ctx, op, c)
}

// Recorded returns the MAC address and the MTU that prevResult has of an interface on the host,
// or in the container's namespace; nil and 0: none.
func (op *Op) Recorded(name string, onHost bool) (mac net.HardwareAddr, mtu int) {
	for _, i := range op.Prev.Interfaces {
		if i.Name == name && (i.Sandbox == "") == onHost {
			mac, _ = spec.HardwareAddr(i.MAC) // what a foreign plugin wrote may be none
			return mac, i.MTU
		}
	}
	return nil, 0
}
