package attach

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// addOwnRoutes adds the plugin's own routes, see [Driver]. The kernel accepts one route to a
// gateway, so two interfaces of a container cannot have the same gateway: the code is 100.
func (op *Op) addOwnRoutes(own []rtnl.Route) error {
	if own == nil {
		return nil
	}
	var ops []rtnl.Op
	for _, r := range own {
		ops = append(ops, rtnl.NewRoute(r))
	}
	err := op.Cont.Do(ops...)
	if errors.Is(err, os.ErrExist) {
		return spec.Errorf(spec.CodeBusy, "%s: another interface of the container has a route to the same gateway or network; configure another gateway: %w",
			op.IfName, err)
	}
	return err
}

// addRoutes installs the result's routes in one batch, in their order, but those without a gateway
// first, since they may lead to gateways. Where another interface has a route to the same network,
// the new one goes behind it. For IPv4 that is its place in the list of one metric, of which the
// kernel uses the first. Routes of IPv6 with one metric become one with several next hops, so a new
// one gets a metric of its own, see addBehind.
func (op *Op) addRoutes() error {
	var near, far []rtnl.Op
	for _, r := range op.Result.Routes {
		want := op.route(r)
		add := rtnl.AppendRoute
		if want.Dst.Addr().Is6() {
			add = rtnl.NewRoute
		}
		if want.GW.IsValid() {
			far = append(far, add(want))
		} else {
			near = append(near, add(want))
		}
	}
	if near = append(near, far...); near == nil {
		return nil
	}
	err := op.Cont.Do(near...)
	if errors.Is(err, os.ErrExist) {
		err = op.addBehind()
	}
	if rtnl.BadGateway(err) {
		if e := op.strayGateway(); e != nil {
			return e
		}
		return spec.Errorf(spec.CodeConfig, "%s: the gateway of a route has to be another host, in a network that an address or a route before leads to: correct \"ipam\": %w", op.IfName, err)
	}
	return err
}

// strayGateway returns the error of a route whose gateway is in no network of the container, with
// the route's key; nil: there is none.
func (op *Op) strayGateway() error {
	var networks []netip.Prefix
	for _, ip := range op.Result.IPs {
		networks = append(networks, ip.Address)
	}
	for _, g := range spec.StrayGateways(op.Conf(), networks) {
		if slices.ContainsFunc(op.Result.Routes, func(r spec.Route) bool { return op.route(r).GW == g.Addr }) {
			return g.Err()
		}
	}
	return nil
}

// addBehind installs the routes of the result that are missing because another route to the network
// has their metric. That of another interface stays in front: the new one gets the next metric, also
// in the result. Those of this interface become next hops of one route.
func (op *Op) addBehind() error {
	for i := range op.Result.Routes {
		r := &op.Result.Routes[i]
		want := op.route(*r)
		have, err := op.Cont.Routes(rtnl.RouteFilter{Table: want.Table, Dst: want.Dst})
		if err != nil {
			return err
		}
		own := func(h rtnl.Route) bool { return h.Link == want.Link }
		if slices.ContainsFunc(have, func(h rtnl.Route) bool { return own(h) && h.GW == want.GW }) {
			continue
		}
		if at := slices.IndexFunc(have, own); at >= 0 {
			want.Priority = have[at].Priority
		} else if len(have) > 0 && want.Dst.Addr().Is6() {
			last := slices.MaxFunc(have, func(a, b rtnl.Route) int { return cmp.Compare(a.Priority, b.Priority) })
			want.Priority = last.Priority + 1
		}
		if err := op.Cont.Do(rtnl.AppendRoute(want)); err != nil {
			return err
		}
		if want.Dst.Addr().Is6() {
			r.Priority = want.Priority
		}
	}
	return nil
}

// scopeLink is RT_SCOPE_LINK, include/uapi/linux/rtnetlink.h: the destination is on the link, and
// the kernel refuses a gateway.
const scopeLink = 253

// route converts a route of the result for the kernel. A route without a gateway gets the first
// gateway of its family, unless its scope says that the destination is on the link. Host bits of
// the destination, which the kernel refuses, are cleared. All attributes are set.
func (op *Op) route(r spec.Route) rtnl.Route {
	out := rtnl.Route{
		Dst: r.Dst.Masked(), GW: r.GW, Link: op.Link.Index,
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority,
	}
	if r.Table != nil {
		out.Table = *r.Table
	}
	if r.Scope != nil {
		scope := uint8(*r.Scope)
		out.Scope = &scope
	}
	if !out.GW.IsValid() && (out.Scope == nil || *out.Scope < scopeLink) {
		out.GW = op.gateway(out.Dst)
	}
	return out
}

// gateway returns the first gateway of the family of a destination. It is zero if there is none, or
// if the destination is a gateway itself; the route then leads to the link.
func (op *Op) gateway(dst netip.Prefix) (first netip.Addr) {
	for _, ip := range op.Result.IPs {
		switch gw := ip.Gateway; {
		case !gw.IsValid() || gw.Is4() != dst.Addr().Is4():
		case Single(gw) == dst:
			return netip.Addr{}
		case !first.IsValid():
			first = gw
		}
	}
	return first
}

// checkRoutes looks for each route of prevResult.
func (op *Op) checkRoutes() error {
	missing, err := op.missingRoutes()
	if err != nil || len(missing) == 0 {
		return err
	}
	return Mismatch("route %s is missing in %s", routeText(missing[0]), op.Call.NetNS)
}

// missingRoutes returns the routes of prevResult that are not in their tables. It compares the
// destination and the gateway, if there is one, but not the gateway of a default route, which a
// later plugin may have changed.
func (op *Op) missingRoutes() (missing []spec.Route, err error) {
	tables := map[int][]rtnl.Route{}
	for _, want := range op.Prev.Routes {
		table := 0 // main
		if want.Table != nil {
			table = *want.Table
		}
		have, known := tables[table]
		if !known {
			if have, err = op.Cont.Routes(rtnl.RouteFilter{Table: table}); err != nil {
				return nil, err
			}
			tables[table] = have
		}
		if !hasRoute(have, want) {
			missing = append(missing, want)
		}
	}
	return missing, nil
}

// hasRoute looks for a route of a result among those of its table.
func hasRoute(have []rtnl.Route, want spec.Route) bool {
	for _, r := range have {
		if r.Dst == want.Dst.Masked() && (!want.GW.IsValid() || r.GW == want.GW || want.Dst.Bits() == 0) {
			return true
		}
	}
	return false
}

// routeText formats a route as ip(8) does.
func routeText(r spec.Route) string {
	text := r.Dst.String()
	if r.GW.IsValid() {
		text += fmt.Sprintf(" via %s", r.GW)
	}
	if r.Table != nil {
		text += fmt.Sprintf(" table %d", *r.Table)
	}
	return text
}

// restoreOwnRoutes adds the routes that the container's link lacks in every table: sbr or vrf may
// have moved them to another one. An IPv6 route that has outlived its address has lost its source.
func (op *Op) restoreOwnRoutes(want []rtnl.Route) error {
	have, err := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index, Table: rtnl.AllTables})
	if err != nil {
		return err
	}
	for _, w := range want {
		matches := func(h rtnl.Route) bool {
			return h.Dst == w.Dst && h.GW == w.GW && (h.Src == w.Src || h.Table != unix.RT_TABLE_MAIN)
		}
		if slices.ContainsFunc(have, matches) {
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
	err = op.addRoutes()
	if rtnl.BadGateway(err) {
		err = spec.NeedsAdd(err)
	}
	if err == nil {
		for _, r := range op.Result.Routes {
			op.Did("route %s added", routeText(r))
		}
	}
	op.Result.Routes = slices.Clone(op.Prev.Routes)
	return err
}

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
			network := rtnl.NetworkRoute(ip.Address, op.Link.Index, want.Table)
			if want.Table == 0 || !network.Dst.Contains(want.GW) || reached(want.Table, network.Dst) {
				continue
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
