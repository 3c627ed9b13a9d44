package attach

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cnibox/rtnl"
	"cnibox/spec"
)

// add makes the attachment, or leaves nothing behind.
//
// What can be told from the configuration is told before anything is opened; the
// reference finds out at the end that it cannot print its result.
func (f *flow) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	c, err := f.conf(r)
	if err != nil {
		return nil, err
	}
	if r.Net.IPAM.Type == "" {
		if err := f.addressless(r); err != nil {
			return nil, err
		}
	}
	op, err := enter(r, c)
	if err != nil {
		return nil, err
	}
	defer op.close()
	if err := f.steps(ctx, op); err != nil {
		return nil, op.undo.Failed(ctx, err)
	}
	return op.Result, nil
}

// steps is the order of an ADD. A context that is done stops it between two
// of them, so that a signal is answered by undoing.
//
// The lease is asked for when the link is there, as dhcp needs it, and routes are set
// last in the container, as they need addresses. Setup comes after them: the host's
// side is shared with others, so it is changed when little is left that can fail.
func (f *flow) steps(ctx context.Context, op *Op) error {
	for _, step := range []stepFunc{
		f.create,
		f.lease,
		func(_ context.Context, op *Op) error { return op.possible() },
		func(_ context.Context, op *Op) error { return f.resolve.do(op) },
		func(ctx context.Context, op *Op) error { return op.configure(ctx, f.remove == nil) },
		f.setup,
		f.ready,
	} {
		if err := ctx.Err(); err != nil {
			return spec.Errorf(spec.CodeTryAgain, "ADD was interrupted: %w", context.Cause(ctx))
		}
		if err := step.do(ctx, op); err != nil {
			return err
		}
	}
	op.announce()
	return nil
}

// lease asks the IPAM plugin for addresses and enters them into the result. Without
// one a chained plugin takes those of prevResult, which another keeps the lease of.
// Errors keep the code of the plugin; an answer without an address is 103.
func (f *flow) lease(ctx context.Context, op *Op) error {
	plugin := op.Net.IPAM.Type
	if plugin == "" {
		op.Result.DNS = op.Net.DNS
		if f.ipam == Chained {
			op.addresses(op.Prev.Clone())
		}
		return nil
	}
	// registered before the deed: a failed ADD of a delegate is followed by its DEL
	op.Undo("addresses of "+plugin, func(ctx context.Context) error {
		_, err := op.Delegate(ctx, plugin, spec.Del)
		return err
	})
	res, err := op.Delegate(ctx, plugin, spec.Add)
	if err != nil {
		return err
	}
	if len(res.IPs) == 0 {
		return spec.Errorf(spec.CodePlugin, "IPAM plugin returned missing IP config: %q gave no address", plugin)
	}
	op.addresses(res)
	if leasedOverLink(plugin) && !op.linkless() {
		return op.leasedMTU()
	}
	return nil
}

// leasedMTU reads the MTU of the container end again: a DHCP server may have told a
// smaller one.
func (op *Op) leasedMTU() error {
	link, err := op.Cont.LinkAt(op.Link.Index)
	if err == nil {
		op.Link.MTU = link.MTU
		op.Result.Interfaces[op.Container].MTU = link.MTU
	}
	return err
}

// minMTU6 is what IPv6 needs at least, in bytes: IPV6_MIN_MTU, include/net/ipv6.h.
const minMTU6 = 1280

// possible refuses what the kernel would not do with the addresses that the IPAM plugin
// has given, and would say so with a word for everything.
// The code is 7.
func (op *Op) possible() error {
	if op.linkless() {
		return nil
	}
	if op.hasIPv6() && op.Link.MTU < minMTU6 {
		return spec.Errorf(spec.CodeConfig, "MTU %d of %s is too small for IPv6, which needs %d: raise \"mtu\", or have no IPv6 address given", op.Link.MTU, op.IfName, minMTU6)
	}
	return nil
}

// addresses enters the IPAM plugin's answer into the result: all addresses
// belong to the container end, and a configured "dns" replaces the answer's.
// The index is shared by all, and is right once Container is.
//
// The kernel makes less of a route's MTU and MSS that are too large, without a word
// (ip_metrics_convert, net/ipv4/metrics.c): the result has what it will.
func (op *Op) addresses(res *spec.Result) {
	op.Result.IPs, op.Result.Routes, op.Result.DNS = res.IPs, res.Routes, res.DNS
	if op.Net.DNS.Replaces() {
		op.Result.DNS = op.Net.DNS
	}
	for i := range op.Result.IPs {
		op.Result.IPs[i].Interface = &op.Container
	}
	for i := range op.Result.Routes {
		r := &op.Result.Routes[i]
		r.MTU, r.AdvMSS = min(r.MTU, 65535-15), min(r.AdvMSS, 65535-40)
	}
}

// configure sets sysctls, addresses and routes in the container and brings
// the link up, in one message where netlink allows it.
// One answer comes for the batch; the kernel is asked nothing back.
// A link that DEL finds by its name is labelled with the attachment, so that DEL
// can tell it from one that another network has put under that name.
func (op *Op) configure(ctx context.Context, byName bool) error {
	if op.linkless() {
		return nil
	}
	up := rtnl.LinkChange{Up: new(true)}
	if byName {
		up.Alias = op.label()
	}
	if len(op.Result.IPs) == 0 {
		if op.StayDown {
			return nil
		}
		return op.clash(op.Cont.Do(rtnl.ChangeLink(op.Link.Index, up)))
	}
	if err := op.NS.SetSysctls(op.sysctls()...); err != nil {
		return err
	}
	ops := []rtnl.Op{rtnl.ChangeLink(op.Link.Index, up)}
	for _, ip := range op.Result.IPs {
		ops = append(ops, rtnl.NewAddr(op.Link.Index, rtnl.Addr{Prefix: ip.Address, NoDAD: !op.DAD, NoPrefixRoute: op.ViaGateway}))
	}
	if !op.Link.Announces() { // coming up with its addresses does
		ops = append(ops[1:], ops[0])
	}
	if err := op.Cont.Do(ops...); err != nil {
		return op.clash(err)
	}
	if op.DAD && op.hasIPv6() {
		if err := op.settle(ctx); err != nil {
			return err
		}
	}
	if op.ViaGateway {
		if err := op.addGatewayRoutes(); err != nil {
			return err
		}
	}
	return op.routes()
}

// clash says what the kernel's EADDRINUSE means, which comes of a macvlan whose MAC
// address, or an ipvlan whose IP address another link on the same master has.
// The code is 100.
func (op *Op) clash(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "MAC address %s, or an IP address, is that of another link on the same master: DEL what has it, or ask for another: %w", op.Link.MAC, err)
}

// routes installs the result's routes in one message, in their order, but those without
// a gateway first, as it may be them that lead to the gateways. Of several to one
// network, those of other interfaces too, the first goes before and IPv6 takes turns.
// A default route alone does not join another, see standBack.
func (op *Op) routes() error {
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
		err = op.standBack(err)
	}
	if rtnl.BadGateway(err) {
		return spec.Errorf(spec.CodeConfig, "%s: the gateway of a route has to be another host, in a network that an address or a route before leads to: correct \"ipam\": %w", op.IfName, err)
	}
	return err
}

// standBack takes from the result the default routes that stand back for
// one of another network in the same container, as the specification wants, and installs
// those that have several gateways. A route twice in the result is fine; one that is
// refused for another reason is the error.
// It is for the second network of a pod, which would take the traffic of the first.
func (op *Op) standBack(err error) error {
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
			op.Warn("default route %s left out: %s has one already", want, op.Call.NetNS)
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
// Host bits of the destination go, which the kernel refuses. All attributes are
// programmed; the reference reports some of them without doing so.
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

// sysctls are the settings of the container end. IPv6 is switched on only
// where an address of it was given.
// Optional ones may be missing: a kernel without IPv6 has none of them.
func (op *Op) sysctls() []rtnl.Sysctl {
	conf := "net/ipv6/conf/" + op.IfName + "/"
	dad := rtnl.Sysctl{Key: conf + "accept_dad", Value: "0", Optional: true}
	if op.DAD {
		dad.Value = "1"
	}
	notify, notify6 := rtnl.Announcing(op.IfName)
	if !op.hasIPv6() {
		return []rtnl.Sysctl{notify, dad}
	}
	all := []rtnl.Sysctl{notify, dad,
		{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
		{Key: conf + "disable_ipv6", Value: "0"},
		{Key: conf + "keep_addr_on_down", Value: "1", Optional: true}}
	if !op.Link.Announces() { // see announce for the others
		all = append(all, notify6)
	}
	return all
}

// hasIPv6 tells whether the container end has an IPv6 address of its result.
func (op *Op) hasIPv6() bool {
	for _, ip := range op.Result.IPs {
		if ip.Address.Addr().Is6() {
			return true
		}
	}
	return false
}

// announce tells the neighbours who has the addresses now, so that one handed
// on from another container is reachable at once. Who does not hear it finds
// out by itself later: failing is no error of ADD.
// Hosts keep an old owner's MAC address for 15 s and more.
func (op *Op) announce() {
	if len(op.Result.IPs) == 0 || op.linkless() || !op.Link.Announces() {
		return
	}
	var err error
	if _, notify := rtnl.Announcing(op.IfName); op.hasIPv6() {
		err = op.NS.SetSysctls(notify)
	}
	if err == nil {
		err = op.Cont.Do(rtnl.Announce(op.Link))
	}
	if err != nil {
		op.Warn("announce %s: %v", op.IfName, err)
	}
}

// Exists turns the kernel's EEXIST for the container end into an error that
// says what to do.
// The code is 100.
func (op *Op) Exists(err error) error {
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "container interface name %q already exists in %s; DEL the attachment that owns it first: %w",
		op.IfName, op.Call.NetNS, err)
}
