package attach

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"cnibox/rtnl"
	"cnibox/spec"
)

// AddRoutes installs the result's routes in one batch, in their order, but those without a gateway
// first, since gateways may be reached by them. Of several routes to one network, also of other
// interfaces, the kernel uses the first one for IPv4 and each in turn for IPv6. A default route is
// not added beside another one, see skipConflicting.
func (op *Op) AddRoutes() error {
	var near, far []rtnl.Op
	for _, r := range op.Result.Routes {
		want := op.route(r)
		add := rtnl.AppendRoute
		if want.Dst.Bits() == 0 {
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
		err = op.skipConflicting(err)
	}
	if rtnl.BadGateway(err) {
		if e := op.strayGateway(); e != nil {
			return e
		}
		return spec.Errorf(spec.CodeConfig, "%s: the gateway of a route has to be another host, in a network that an address or a route before leads to: correct \"ipam\": %w", op.IfName, err)
	}
	return err
}

// strayGateway is the error of the gateway of a route that is in no network of the container, with the
// key that it is from; nil: there is none.
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

// skipConflicting removes from the result the default routes that conflict with one of another
// network in the same container, as the specification says, and installs those that have several
// gateways. A route that is refused for another reason is an error.
func (op *Op) skipConflicting(err error) error {
	kept := op.Result.Routes[:0:0]
	for _, r := range op.Result.Routes {
		want := op.route(r)
		have, lerr := op.Cont.Routes(rtnl.RouteFilter{Table: want.Table, Dst: want.Dst})
		if lerr != nil {
			return lerr
		}
		own := func(h rtnl.Route) bool { return h.Link == want.Link }
		same := func(h rtnl.Route) bool { return own(h) && h.GW == want.GW }
		switch {
		case slices.ContainsFunc(have, same):
		case slices.ContainsFunc(have, own):
			if err := op.Cont.Do(rtnl.AppendRoute(want)); err != nil {
				return err
			}
		case want.Dst.Bits() == 0 && len(have) > 0:
			op.Warn("default route %s left out: the container has one already", want)
			continue
		default:
			return err
		}
		kept = append(kept, r)
	}
	op.Result.Routes = kept
	return nil
}

// scopeLink is RT_SCOPE_LINK, include/uapi/linux/rtnetlink.h: the destination
// is on the link, and a gateway is refused.
const scopeLink = 253

// route is the kernel's form of a route of the result: without a gateway of
// its own it takes the first one of its family, unless its scope says that
// the destination is on the link.
// Host bits of the destination, which the kernel refuses, are cleared. All attributes are set.
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

// gateway is the first gateway of the family of a destination; zero: there is none, or
// the destination is a gateway itself.
// A route without a gateway then goes to the link itself.
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
