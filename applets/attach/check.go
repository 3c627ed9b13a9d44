package attach

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"cnibox/rtnl"
	"cnibox/spec"
)

// check compares prevResult with the kernel, and runs the IPAM plugin, if there is one, and the
// plugin's own step. It changes nothing. What later plugins of a chain may change is not
// compared.
func (p *Interface[P]) check(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err = cmp.Or(err, r.CheckIndexes()); err != nil {
		return err
	}
	op, err := enter(ctx, r)
	if err != nil {
		return err
	}
	defer op.close()
	if r.Net.IPAM.Type != "" {
		if _, err := r.Delegate(ctx, r.Net.IPAM.Type, spec.Check); err != nil {
			if !op.restoresLease() {
				err = spec.Anew(err)
			}
			return err
		}
	}
	if !p.hasNetdev(c) {
		return nil
	}
	if err := op.checkLink(p.Kind); err != nil {
		return err
	}
	if !op.Link.Up && !is(p.Down, c) {
		return Mismatch("interface %s is down in %s", op.IfName, op.Call.NetNS)
	}
	if err := op.checkAddrs(); err != nil {
		return err
	}
	if err := op.checkRoutes(); err != nil {
		return err
	}
	err = p.Verify.run(ctx, op, c)
	if p.Restore == nil { // which sets none of that again
		err = spec.Anew(err)
	}
	return err
}

// Mismatch returns the error of a CHECK that found a difference.
// Its code is 102.
func Mismatch(format string, args ...any) *spec.Error {
	return spec.Errorf(spec.CodeCheck, format, args...)
}

// Lost is [Mismatch] for what RESTORE cannot set again.
func Lost(format string, args ...any) error { return spec.Anew(Mismatch(format, args...)) }

// checkLink finds the container's link in prevResult and in the container.
// It sets op.Link and op.Container for the checks that follow. The MTU is not compared:
// tuning may have set it.
func (op *Op) checkLink(kind string) error {
	op.Container = op.containerLink()
	if op.Container < 0 {
		return Lost("prevResult has no interface %q in sandbox %q", op.IfName, op.Call.NetNS)
	}
	link, err := op.Cont.Link(op.IfName)
	if err != nil {
		return Lost("container interface: %w", err)
	}
	op.Link = link
	if kind != "" && link.Kind != kind {
		return Lost("interface %s in %s is of kind %q, not %q", op.IfName, op.Call.NetNS, link.Kind, kind)
	}
	return CheckMAC(link, op.Prev.Interfaces[op.Container].MAC)
}

// CheckMAC compares a link's address with that of a result; an empty one equals any.
func CheckMAC(link *rtnl.Link, want string) error {
	if want == "" {
		return nil
	}
	addr, err := spec.HardwareAddr(want)
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "prevResult: interface %s: %w", link.Name, err)
	}
	if !bytes.Equal(addr, link.MAC) {
		return Lost("interface %s has MAC address %s, not %s", link.Name, link.MAC, addr)
	}
	return nil
}

// containerLink is the index of the container's link in prevResult; -1: it has none. Sandboxes are
// compared as namespaces, not as paths.
func (op *Op) containerLink() int {
	for i, itf := range op.Prev.Interfaces {
		if itf.Name == op.IfName && op.isNS(itf.Sandbox) {
			return i
		}
	}
	return -1
}

// isNS reports whether a sandbox is the container's namespace.
func (op *Op) isNS(sandbox string) bool { return op.NS.At(sandbox) }

// Own returns the addresses of prevResult that belong to the container's link.
func (op *Op) Own() []spec.IP { return op.Prev.Addresses(op.IfName, op.isNS) }

// checkAddrs looks for each of the addresses of prevResult on the link.
func (op *Op) checkAddrs() error {
	missing, err := op.missingAddrs()
	if err != nil || len(missing) == 0 {
		return err
	}
	return Mismatch("interface %s does not have address %s", op.IfName, missing[0].Address)
}

// missingAddrs are the addresses of prevResult that the link lacks. It may have others. One whose
// duplicate was found counts as missing. The error is [Lost] where the MTU keeps IPv6 away.
func (op *Op) missingAddrs() (missing []spec.IP, err error) {
	have, err := op.Cont.Addrs(op.Link.Index)
	if err != nil {
		return nil, err
	}
	set := map[netip.Prefix]bool{}
	for _, a := range have {
		set[a.Prefix] = !a.DADFailed
	}
	for _, ip := range op.Own() {
		if !set[ip.Address] && ip.Address.Addr().Is6() && op.Link.MTU < minMTU6 {
			return nil, Lost("interface %s does not have address %s: its MTU is %d, and IPv6 needs %d", op.IfName, ip.Address, op.Link.MTU, minMTU6)
		}
		if !set[ip.Address] {
			missing = append(missing, ip)
		}
	}
	return missing, nil
}

// checkRoutes looks for each route of prevResult.
func (op *Op) checkRoutes() error {
	missing, err := op.missingRoutes()
	if err != nil || len(missing) == 0 {
		return err
	}
	return Mismatch("route %s is missing in %s", routeText(missing[0]), op.Call.NetNS)
}

// missingRoutes are the routes of prevResult that are not in their tables, by destination and,
// unless it is a default route, by gateway, if it has one. A later plugin may have changed the
// gateway of a default route.
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
