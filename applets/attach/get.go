package attach

import (
	"context"
	"errors"

	"cnibox/rtnl"
	"cnibox/spec"
)

// get tells again what ADD returned: prevResult if there is one, else what the
// IPAM plugin and the live links know. An unknown container has code 3.
//
// Addresses and routes are the IPAM plugin's word, not the kernel's: GET must not fail,
// nor change its answer, because somebody has removed some.
func (i Interface[C]) get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	if r.Prev != nil {
		return r.Prev, nil
	}
	c, err := i.conf(r)
	if err != nil {
		return nil, err
	}
	op, err := enter(r)
	if err != nil {
		return nil, err
	}
	defer op.close()
	if op.Link, err = op.Cont.Link(op.IfName); err != nil || op.Link.Kind != i.Kind {
		return nil, spec.Errorf(spec.CodeUnknown, "no attachment %s is known: no %s interface %s in %s",
			op.Attachment, i.Kind, op.IfName, op.Call.NetNS)
	}
	if err := i.describe(op, c); err != nil {
		return nil, err
	}
	if r.Net.IPAM.Type == "" {
		op.Result.DNS = r.Net.DNS
		return op.Result, nil
	}
	res, err := r.Delegate(ctx, r.Net.IPAM.Type, spec.Get)
	if err != nil {
		return nil, err
	}
	op.addresses(res)
	if i.Resolve != nil {
		err = i.Resolve(op, c)
	}
	return op.Result, err
}

// describe enters the interfaces into the result.
// Without a step of the plugin's the container end is the only one.
func (i Interface[C]) describe(op *Op, c *C) error {
	if i.Describe != nil {
		return i.Describe(op, c)
	}
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// ContainerInterface is the result's entry for the container end.
// op.Link must be there.
func (op *Op) ContainerInterface() spec.Interface {
	return spec.Interface{Name: op.IfName, MAC: op.Link.MAC.String(), MTU: op.Link.MTU, Sandbox: op.Call.NetNS}
}

// status is healthy if the plugin's probe and the IPAM plugin are.
// A failed probe has code 50; an error of the IPAM plugin keeps its code.
func (i Interface[C]) status(ctx context.Context, r *spec.Request) error {
	c, err := i.conf(r)
	if err != nil {
		return err
	}
	if i.Probe != nil {
		if err := i.Probe(ctx, r, c); err != nil {
			return spec.Errorf(spec.CodeNotReady, "%s: %w", r.Net.Type, err)
		}
	}
	if r.Net.IPAM.Type == "" {
		return nil
	}
	_, err = r.Delegate(ctx, r.Net.IPAM.Type, spec.Status)
	return err
}

// gc deletes the network's links whose attachment is gone, then asks the
// plugin's own step and the IPAM plugin. It goes on past errors.
// The reference has no GC in any plugin, so what it leaves is there until somebody
// looks.
func (i Interface[C]) gc(ctx context.Context, r *spec.Request) error {
	c, err := i.conf(r)
	if err != nil {
		r.Warn("%v: collecting what is marked as the network's all the same", err)
		c = new(C)
	}
	op, err := open(r)
	if err != nil {
		return err
	}
	defer op.close()
	errs := []error{op.collectLinks(), call(i.Collect, ctx, op, c)}
	if r.Net.IPAM.Type != "" {
		_, err := r.Delegate(ctx, r.Net.IPAM.Type, spec.GC)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// collectLinks deletes the host's links that carry the label of an attachment
// of this network that is not in the valid set, in one batch.
// Links without a label are none of ours. In one batch the kernel's wait for readers
// is paid once.
func (op *Op) collectLinks() error {
	links, err := op.Host.Links()
	if err != nil {
		return err
	}
	stale := op.Stale()
	var ops []rtnl.Op
	for _, l := range links {
		if stale(spec.LabelKey(l.Alias)) {
			ops = append(ops, rtnl.DropLink(l.Index))
		}
	}
	if ops == nil {
		return nil
	}
	return op.Host.Do(ops...)
}

// Stale tells of a key whether it is an attachment of this network that is
// not in the valid set.
// The set is read once for all keys; the function returned is for one verb.
func (op *Op) Stale() func(key string) bool {
	valid := map[string]bool{}
	for _, a := range op.Valid {
		valid[a.Key()] = true
	}
	network := spec.NetworkKey(op.Network)
	return func(key string) bool {
		return len(key) > len(network) && key[:len(network)] == network && !valid[key]
	}
}
