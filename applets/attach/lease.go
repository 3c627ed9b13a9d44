package attach

import (
	"context"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// needsIPAM returns the error of a plugin that requires an IPAM plugin.
func needsIPAM(r *spec.Request) *spec.Error {
	return spec.Errorf(spec.CodeConfig, "%s interface requires an IPAM configuration", r.Net.Type).
		WithDetails("no plugin name provided: set \"ipam.type\"")
}

// checkAddressed reports an ADD that needs an IPAM plugin while none is configured. Errors have
// code 7.
func checkAddressed(r *spec.Request, ipam IPAMNeed) error {
	switch {
	case r.Net.IPAM.Type != "":
		return nil
	case ipam == OrPrev && r.Prev != nil && len(r.Prev.IPs) > 0:
		return nil
	case ipam == OrPrev:
		return needsIPAM(r).WithDetails("in a chain the addresses of prevResult serve as well").AtKey("")
	case r.Net.Version.NeedsAddress():
		return spec.Errorf(spec.CodeConfig, "cannot convert: no valid IP addresses").
			WithDetails("cniVersion %s cannot express a result without addresses: use 0.3.0 or later, or configure \"ipam\"", r.Net.Version)
	}
	return nil
}

// lease gets addresses from the IPAM plugin and enters them into the result. Without an IPAM
// plugin, a chained plugin uses the addresses of prevResult, which another plugin has leased.
// Errors keep the code of the IPAM plugin; an answer without an address is 103.
func (op *Op) lease() error {
	plugin := op.Net.IPAM.Type
	if plugin == "" {
		op.Result.DNS = op.Net.DNS
		if op.plugin.IPAM == OrPrev {
			if err := op.Prev.CheckGateways(); err != nil {
				return spec.Errorf(spec.CodeConfig, "prevResult: %w", err)
			}
			op.addresses(op.Prev.Clone())
		}
		return nil
	}
	res, err := op.Delegate(op.Context(), plugin, spec.Add)
	if err == nil || op.NeedsDel(plugin, err) {
		op.Undo("addresses of "+plugin, func(ctx context.Context) error { return op.delegate(ctx, spec.Del) })
	}
	if err != nil {
		return err
	}
	if len(res.IPs) == 0 {
		return spec.Errorf(spec.CodePlugin, "IPAM plugin returned missing IP config: %q gave no address", plugin)
	}
	if err := res.CheckGateways(); err != nil {
		return spec.Errorf(spec.CodePlugin, "IPAM plugin %s: result: %v", plugin, err)
	}
	op.addresses(res)
	if op.Link != nil && op.leasedOverLink() {
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
// The kernel silently reduces an MTU or MSS of a route that is too large (ip_metrics_convert,
// net/ipv4/metrics.c), and so does addresses.
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

// checkLease runs CHECK of the IPAM plugin.
func (op *Op) checkLease() error {
	if op.Net.IPAM.Type == "" {
		return nil
	}
	err := op.delegate(op.Context(), spec.Check)
	if err != nil && !op.restoresLease() {
		err = spec.NeedsAdd(err)
	}
	return err
}

// dropOthers drops from prevResult what later plugins of the chain have added: addresses of the
// interface that are not in its lease, and routes to where neither the lease nor the plugin has
// one. It reports whether there was any. An external IPAM plugin does not say what it has leased:
// then all are taken for its own.
func (op *Op) dropOthers(d Driver) bool {
	ipam, err := op.Invoker.Find(op.Net.IPAM.Type)
	if op.Net.IPAM.Type == "" || err != nil || ipam == nil || ipam.Get == nil {
		return false
	}
	asked := *op.Request
	asked.Prev = nil
	lease, err := asked.Delegate(op.Context(), op.Net.IPAM.Type, spec.Get)
	if err != nil {
		return false
	}
	given := *op
	given.Result = &spec.Result{}
	given.addresses(lease)
	if d.Gateways(&given) != nil {
		return false
	}
	own := op.Prev.Clone()
	own.IPs = slices.DeleteFunc(own.IPs, func(ip spec.IP) bool {
		return !slices.ContainsFunc(given.Result.IPs, func(o spec.IP) bool { return o.Address == ip.Address })
	})
	own.Routes = slices.DeleteFunc(own.Routes, func(r spec.Route) bool {
		return !slices.ContainsFunc(given.Result.Routes, func(o spec.Route) bool { return o.Dst.Masked() == r.Dst.Masked() })
	})
	dropped := len(own.IPs) < len(op.Prev.IPs) || len(own.Routes) < len(op.Prev.Routes)
	if len(own.IPs) == 0 {
		return false // the configuration has changed since ADD
	}
	op.Prev = own
	return dropped
}

// releaseLease runs DEL of the IPAM plugin.
func (op *Op) releaseLease(ctx context.Context) error { return op.delegate(ctx, spec.Del) }

// leasedOverLink reports [spec.Facts.OverLink] of the IPAM plugin, also of an external one.
func (op *Op) leasedOverLink() bool {
	known := op.Invoker.Known(op.Net.IPAM.Type)
	return known != nil && known.OverLink
}

// delegate runs a verb of the IPAM plugin that has no result.
func (op *Op) delegate(ctx context.Context, v spec.Verb) error {
	_, err := op.Delegate(ctx, op.Net.IPAM.Type, v)
	return err
}

// restoresLease reports whether the IPAM plugin has a RESTORE; an external one does not.
func (op *Op) restoresLease() bool {
	verbs, err := op.Invoker.Find(op.Net.IPAM.Type)
	return err == nil && verbs != nil && verbs.Restore != nil
}

// restoreLease runs RESTORE of the IPAM plugin.
func (op *Op) restoreLease() error {
	if op.Net.IPAM.Type == "" || !op.restoresLease() {
		return nil
	}
	return op.delegate(op.Context(), spec.Restore)
}

// mayHaveLeases reports whether the IPAM plugin may store leases. A built-in plugin without a GC
// stores nothing.
func (op *Op) mayHaveLeases() bool {
	if op.Net.IPAM.Type == "" {
		return false
	}
	verbs, err := op.Invoker.Find(op.Net.IPAM.Type)
	return err != nil || verbs == nil || verbs.GC != nil
}
