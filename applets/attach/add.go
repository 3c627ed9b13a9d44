package attach

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// add makes the attachment, or leaves nothing behind. An invalid configuration is an error before
// anything is opened.
func (p *Interface[P]) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	c, err := p.conf(r)
	if err != nil {
		return nil, err
	}
	if err := checkAddressed(r, p.IPAM); err != nil {
		return nil, err
	}
	op, err := enter(ctx, r)
	if err != nil {
		return nil, err
	}
	defer op.close()
	op.byName, op.DAD = p.Remove == nil, is(p.Shared, c)
	if err := op.undo.Failed(ctx, p.steps(ctx, op, c)); err != nil {
		return nil, err
	}
	return op.Result, nil
}

// steps is the order of an ADD. A context that is done stops it between two of them, so a signal
// makes it undo what was done.
//
// The lease comes after the link, which dhcp needs, and routes after addresses. Setup comes last:
// the host is shared with other containers, so it is changed when little is left that can fail.
func (p *Interface[P]) steps(ctx context.Context, op *Op, c P) error {
	for _, step := range []func() error{
		func() error { return p.Create(ctx, op, c) },
		func() error { return op.lease(ctx, p.IPAM) },
		op.checkMTU6,
		func() error { return p.Resolve.run(ctx, op, c) },
		func() error { return p.configure(ctx, op, c) },
		func() error { return p.Setup.run(ctx, op, c) },
		func() error { return p.Ready.run(ctx, op, c) },
	} {
		if ctx.Err() != nil {
			return spec.Errorf(spec.CodeTryAgain, "ADD was interrupted: %w", context.Cause(ctx))
		}
		if err := step(); err != nil {
			return err
		}
	}
	op.announce()
	return nil
}

// checkAddressed reports an ADD that needs an IPAM plugin and has none configured. Errors have
// code 7.
func checkAddressed(r *spec.Request, ipam Need) error {
	switch {
	case r.Net.IPAM.Type != "":
		return nil
	case ipam == Chained && r.Prev != nil && len(r.Prev.IPs) > 0:
		return nil
	case ipam == Chained:
		return needsIPAM(r).WithDetails("in a chain the addresses of prevResult serve as well")
	case r.Net.Version.NeedsAddress():
		return spec.Errorf(spec.CodeConfig, "cannot convert: no valid IP addresses").
			WithDetails("cniVersion %s cannot express a result without addresses: use 0.3.0 or later, or configure \"ipam\"", r.Net.Version)
	}
	return nil
}

// lease asks the IPAM plugin for addresses and enters them into the result. Without
// one a chained plugin takes those of prevResult, whose lease is another plugin's.
// Errors keep the code of the plugin; an answer without an address is 103.
func (op *Op) lease(ctx context.Context, ipam Need) error {
	plugin := op.Net.IPAM.Type
	if plugin == "" {
		op.Result.DNS = op.Net.DNS
		if ipam == Chained {
			op.addresses(op.Prev.Clone())
		}
		return nil
	}
	res, err := op.Delegate(ctx, plugin, spec.Add)
	if err == nil || op.NeedsDel(plugin, err) {
		op.Undo("addresses of "+plugin, func(ctx context.Context) error { return op.delegate(ctx, spec.Del) })
	}
	if err != nil {
		return err
	}
	if len(res.IPs) == 0 {
		return spec.Errorf(spec.CodePlugin, "IPAM plugin returned missing IP config: %q gave no address", plugin)
	}
	op.addresses(res)
	if op.Link != nil && leasedOverLink(plugin) {
		return op.leasedMTU()
	}
	return nil
}

// leasedMTU reads the MTU of the container's link again: a DHCP server may have given a
// smaller one.
func (op *Op) leasedMTU() error {
	link, err := op.Cont.LinkAt(op.Link.Index)
	if err == nil {
		op.Link.MTU = link.MTU
		op.Result.Interfaces[op.Container].MTU = link.MTU
	}
	return err
}

// addresses enters the IPAM plugin's answer into the result: all addresses
// belong to the container's link, and a configured "dns" replaces the answer's.
// All share the index op.Container, which may be set later.
//
// The kernel reduces an MTU or MSS of a route that is too large, without an error
// (ip_metrics_convert, net/ipv4/metrics.c): so does the result.
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

// minMTU6 is IPV6_MIN_MTU, include/net/ipv6.h, in bytes.
const minMTU6 = 1280

// checkMTU6 refuses IPv6 addresses on a link whose MTU is too small, which the kernel does not
// report. The code is 7.
func (op *Op) checkMTU6() error {
	if op.Link != nil && op.hasIPv6() && op.Link.MTU < minMTU6 {
		return spec.Errorf(spec.CodeConfig, "MTU %d of %s is too small for IPv6, which needs %d: raise \"mtu\", or have no IPv6 address given", op.Link.MTU, op.IfName, minMTU6)
	}
	return nil
}

// configure brings the container's link up with its addresses and routes, if there is one that is
// to be up. One that stays down has no addresses, as its plugin checks.
func (p *Interface[P]) configure(ctx context.Context, op *Op, c P) error {
	switch {
	case op.Link == nil || is(p.Down, c):
		return nil
	case p.Configure != nil:
		return p.Configure(ctx, op, c)
	}
	return op.Configure(ctx)
}

// Configure gives the container's link the addresses and the routes of the result, and
// brings it up.
func (op *Op) Configure(ctx context.Context) error {
	if err := op.SetAddresses(ctx, true); err != nil {
		return err
	}
	return op.AddRoutes()
}

// SetAddresses sets sysctls and addresses and brings the link up, in one batch where netlink
// allows it. With prefixRoutes each address comes with a route to its network. A link that DEL
// finds by its name gets the attachment as its alias, so that DEL does not delete the link of
// another network with that name.
func (op *Op) SetAddresses(ctx context.Context, prefixRoutes bool) error {
	up := rtnl.LinkChange{Up: new(true)}
	if op.byName {
		up.Alias = op.label()
	}
	if len(op.Result.IPs) == 0 {
		return op.explainInUse(op.Cont.Do(rtnl.ChangeLink(op.Link.Index, up)))
	}
	settings := op.sysctls()
	for i := range settings {
		settings[i].New = true
	}
	if err := op.NS.SetSysctls(settings...); err != nil {
		return err
	}
	ops := []rtnl.Op{rtnl.ChangeLink(op.Link.Index, up)}
	for _, ip := range op.Result.IPs {
		ops = append(ops, rtnl.NewAddr(op.Link.Index, op.address(ip, prefixRoutes)))
	}
	if !op.Link.Announces() { // coming up with its addresses does
		ops = append(ops[1:], ops[0])
	}
	if err := op.Cont.Do(ops...); err != nil {
		return op.explainInUse(err)
	}
	if op.DAD && op.hasIPv6() {
		return op.settle(ctx)
	}
	return nil
}

// address is an address of the result as the container's link gets it.
func (op *Op) address(ip spec.IP, prefixRoute bool) rtnl.Addr {
	return rtnl.Addr{Prefix: ip.Address, NoDAD: !op.DAD, NoPrefixRoute: !prefixRoute}
}

// explainInUse explains EADDRINUSE: another link of the same master has the MAC address of the
// macvlan, or the IP address of the ipvlan.
// The code is 100.
func (op *Op) explainInUse(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "MAC address %s, or an IP address, is that of another link on the same master: DEL what has it, or ask for another: %w", op.Link.MAC, err)
}

// sysctls are the settings of the container's link. IPv6 is enabled only for an IPv6 address.
// Optional ones may be missing, as in a kernel without IPv6.
func (op *Op) sysctls() []netns.Sysctl {
	conf := "net/ipv6/conf/" + op.IfName + "/"
	dad := netns.Sysctl{Key: conf + "accept_dad", Value: "0", Optional: true}
	if op.DAD {
		dad.Value = "1"
	}
	notify, notify6 := rtnl.Announcing(op.IfName)
	if !op.hasIPv6() {
		return []netns.Sysctl{notify, dad}
	}
	all := []netns.Sysctl{notify, dad,
		{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
		{Key: conf + "disable_ipv6", Value: "0"},
		{Key: conf + "keep_addr_on_down", Value: "1", Optional: true}}
	if !op.Link.Announces() { // see announce for the others
		all = append(all, notify6)
	}
	return all
}

// hasIPv6 reports whether the result has an IPv6 address.
func (op *Op) hasIPv6() bool {
	for _, ip := range op.Result.IPs {
		if ip.Address.Addr().Is6() {
			return true
		}
	}
	return false
}

// announce sends gratuitous ARP and neighbour advertisements, so that an address that another
// container had is reachable at once. A failure is not an error: hosts update their neighbour entries
// after 15 s or more.
func (op *Op) announce() {
	if len(op.Result.IPs) == 0 || op.Link == nil || !op.Link.Announces() {
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

// Exists explains EEXIST for the container's link. The code is 100.
func (op *Op) Exists(err error) error {
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "container interface name %q already exists in %s; DEL the attachment that owns it first: %w",
		op.IfName, op.Call.NetNS, err)
}
