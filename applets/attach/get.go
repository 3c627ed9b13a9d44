package attach

import (
	"cmp"
	"context"
	"errors"
	"os"

	"cnibox/rtnl"
	"cnibox/spec"
)

// get returns the result of the ADD: prevResult, if there is one and the IPAM plugin and the links
// still have the attachment, else what they have. An unknown or deleted container has code 3; one
// whose link is gone while its addresses are leased has not, as it needs a DEL.
//
// Addresses and routes are the IPAM plugin's, not the kernel's: GET must not fail because some were
// removed.
func (p *Interface[P]) get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	op, err := enter(ctx, r) // first: a container that is gone is unknown, with any configuration
	if err != nil {
		return nil, err
	}
	defer op.close()
	c, err := p.conf(r)
	if err != nil {
		return nil, err
	}
	lost, err := p.describe(ctx, op, c)
	switch {
	case err != nil:
		return nil, err
	case lost != nil && !op.leases():
		return nil, lost
	case r.Net.IPAM.Type == "":
		op.Result.DNS = r.Net.DNS
		return cmp.Or(r.Prev, op.Result), nil
	}
	res, err := r.Delegate(ctx, r.Net.IPAM.Type, spec.Get)
	switch {
	case lost != nil && err == nil:
		return nil, Mismatch("interface %s of %s is gone, and its addresses are still leased: run DEL", op.IfName, op.Attachment).WithDetails("%s", lost.Msg)
	case lost != nil && spec.AsError(err).Code == spec.CodeUnknown:
		return nil, lost
	case err != nil:
		return nil, err
	}
	if r.Prev != nil {
		return r.Prev, nil
	}
	op.addresses(res)
	return op.Result, p.Resolve.run(ctx, op, c)
}

// describe finds the attachment's links and enters them into the result; lost has code 3: they are
// gone, or never were.
func (p *Interface[P]) describe(ctx context.Context, op *Op, c P) (lost *spec.Error, err error) {
	if op.Link, err = op.Cont.Link(op.IfName); p.hasNetdev(c) && (err != nil || p.Kind != "" && op.Link.Kind != p.Kind) {
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: no %s interface %s in %s",
			op.Attachment, p.Kind, op.IfName, op.Call.NetNS), nil
	}
	if p.Describe == nil {
		op.Container = op.AddInterface(op.ContainerInterface())
	}
	err = p.Describe.run(ctx, op, c)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: %w", op.Attachment, err), nil
	case err != nil && spec.AsError(err).Code == spec.CodeUnknown:
		return spec.AsError(err), nil
	}
	return nil, err
}

// leases reports whether the IPAM plugin may store leases: one of this program without a GC stores
// nothing.
func (op *Op) leases() bool {
	if op.Net.IPAM.Type == "" {
		return false
	}
	verbs, err := op.Invoker.Find(op.Net.IPAM.Type)
	return err != nil || verbs == nil || verbs.GC != nil
}

// ContainerInterface is the result's entry for the container's link.
// op.Link must be there.
func (op *Op) ContainerInterface() spec.Interface {
	return spec.Interface{Name: op.IfName, MAC: op.Link.MAC.String(), MTU: op.Link.MTU, Sandbox: op.Call.NetNS}
}

// status runs the plugin's probe and the IPAM plugin's STATUS.
// A failed probe has code 50; an error of the IPAM plugin keeps its code.
func (p *Interface[P]) status(ctx context.Context, r *spec.Request) error {
	c, err := p.conf(r)
	if err != nil {
		return err
	}
	if p.Probe != nil {
		if err := p.Probe(ctx, r, c); err != nil {
			return spec.Errorf(spec.CodeNotReady, "%s: %w", r.Net.Type, err)
		}
	}
	if r.Net.IPAM.Type == "" {
		return nil
	}
	_, err = r.Delegate(ctx, r.Net.IPAM.Type, spec.Status)
	return err
}

// gc deletes the network's links whose attachment is gone, then runs the
// plugin's own step and the IPAM plugin's GC. It goes on past errors.
func (p *Interface[P]) gc(ctx context.Context, r *spec.Request) error {
	c := p.confOrZero(r)
	op, err := open(ctx, r, nil)
	if err != nil {
		return err
	}
	defer op.close()
	errs := []error{op.collectLinks(), p.Collect.run(ctx, op, c)}
	if r.Net.IPAM.Type != "" {
		_, err := r.Delegate(ctx, r.Net.IPAM.Type, spec.GC)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// collectLinks deletes the host-side veths that carry the label of an attachment
// of this network that is not in the valid set.
// Links of other kinds are not on the host, unless it is a container itself, of a network of the
// same name.
func (op *Op) collectLinks() error {
	stale := op.Stale()
	return op.Host.DelLinks(func(l *rtnl.Link) bool { return l.Kind == "veth" && stale(l.Alias) }, nil)
}
