package attach

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// read decodes and checks the plugin's configuration, before any change. Errors have code 7.
func (p *Plugin) read(r *spec.Request) (Driver, error) {
	d := p.New()
	err := cmp.Or(frame.Read(r, d), r.CheckIPAM())
	switch {
	case err != nil:
	case p.IPAM == Required && r.Net.IPAM.Type == "":
		err = needsIPAM(r).AtKey("")
	case p.IPAM == Never && r.Net.IPAM.Type != "":
		err = spec.Errorf(spec.CodeConfig, "%s: \"ipam\" is not supported", r.Net.Type).AtKey("ipam")
	}
	return d, err
}

// readAnyway is read for the verbs that release: they need only the names of the attachment, so an
// invalid configuration is a warning.
func (p *Plugin) readAnyway(r *spec.Request) Driver {
	d, err := p.read(r)
	if err != nil {
		r.Warn("ignored for %s: %v", r.Call.Verb, err)
		d = p.New()
	}
	return d
}

// begin reads the configuration and opens what CHECK and RESTORE compare prevResult with.
func (p *Plugin) begin(ctx context.Context, r *spec.Request) (d Driver, op *Op, err error) {
	d, err = p.read(r)
	if err = cmp.Or(err, r.CheckIndexes()); err != nil {
		return nil, nil, err
	}
	op, err = p.openWithNS(ctx, r, d)
	return d, op, err
}

// beginWithoutNS is begin for verbs that do not concern a container.
func (p *Plugin) beginWithoutNS(ctx context.Context, r *spec.Request) (d Driver, op *Op, err error) {
	if d, err = p.read(r); err != nil {
		return nil, nil, err
	}
	op, err = p.open(ctx, r, d)
	return d, op, err
}

// validate checks what ADD and its IPAM plugin check before they open anything.
func (p *Plugin) validate(r *spec.Request) (resources spec.Resources, err error) {
	d, err := p.read(r)
	if err == nil && p.IPAM != OrPrev { // the addresses may be those of prevResult
		err = checkAddressed(r, p.IPAM)
	}
	if err == nil && p.Facts.MAC {
		_, err = r.MAC()
	}
	if err == nil && r.Net.IPAM.Type != "" {
		resources, err = r.Validate(r.Net.IPAM.Type)
	}
	if err != nil {
		return resources, err
	}
	own := d.Resources()
	own.Veth = p.Veth
	own.Add(resources)
	return own, nil
}

// add makes the attachment, or leaves nothing behind. An invalid configuration is an error before
// anything is opened. When the context ends, as on a signal, add stops between two steps and undoes
// what was done.
//
// The lease comes after the link, which dhcp needs, and routes after addresses. The host comes
// last, since other containers share it: little can fail after that. Forwarding on the host is the
// last step, since others may need it as soon as it is on.
func (p *Plugin) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	d, err := p.read(r)
	if err = cmp.Or(err, checkAddressed(r, p.IPAM)); err != nil {
		return nil, err
	}
	op, err := p.openWithNS(ctx, r, d)
	if err != nil {
		return nil, err
	}
	for _, step := range [...]func(*Op) error{
		d.Link, (*Op).nameNS, (*Op).addInterfaces, (*Op).lease, (*Op).checkMTU6,
		d.Gateways, func(op *Op) error { return op.configure(d.Routes(op)) },
		d.Host, (*Op).waitVeth, (*Op).forward,
	} {
		if ctx.Err() != nil {
			err = spec.Errorf(spec.CodeTryAgain, "ADD was interrupted: %w", context.Cause(ctx))
		} else {
			err = step(op)
		}
		if err != nil {
			return nil, op.Failed(err)
		}
	}
	op.announce()
	return op.Result, nil
}

// nameNS gives the container's namespace an ID on the host, as the kernel does for a veth, so that
// GC finds it whatever keeps it alive. A process without the privilege for that leaves it out.
func (op *Op) nameNS() error {
	if op.plugin.Veth || op.plugin.IPAM == Never {
		return nil
	}
	if err := op.Host.NameNS(op.NS); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// addInterfaces enters the links into the result, in the order of the reference: bridge, host-side
// veth, container's link.
func (op *Op) addInterfaces() error {
	for _, l := range []*rtnl.Link{op.Bridge, op.Veth} {
		if l != nil {
			op.AddInterface(HostInterface(l))
		}
	}
	own := spec.Interface{Name: op.IfName, Sandbox: op.Call.NetNS, PCIID: op.PCIID}
	if op.Link != nil {
		own.MAC, own.MTU = op.Link.MAC.String(), op.Link.MTU
	}
	op.Container = op.AddInterface(own)
	return nil
}

// configure gives the container's link the addresses and the routes of the result, and brings it
// up, if the link exists and is to be up. A link that stays down has no addresses, as its plugin
// checks. The routes own replace the kernel's routes to the networks of the addresses; nil: keep
// those.
func (op *Op) configure(own []rtnl.Route) error {
	if op.Link == nil || op.resources.Down {
		return nil
	}
	if err := op.setAddresses(own == nil); err != nil {
		return err
	}
	if err := op.addOwnRoutes(own); err != nil {
		return err
	}
	return op.addRoutes()
}

// check compares prevResult with the kernel, runs CHECK of the IPAM plugin, if there is one, and
// the plugin's own step. It changes nothing. It does not compare what later plugins of a chain may
// change: after a difference it compares once more, without what they have added.
func (p *Plugin) check(ctx context.Context, r *spec.Request) error {
	d, op, err := p.begin(ctx, r)
	if err != nil {
		return err
	}
	if err := op.checkLease(); err != nil || op.resources.NoNetdev {
		return err
	}
	if err = op.compare(d); err != nil && op.dropOthers(d) {
		err = op.compare(d)
	}
	return err
}

// compare compares prevResult with the kernel.
func (op *Op) compare(d Driver) error {
	for _, step := range [...]func(*Op) error{
		(*Op).checkLink, (*Op).checkAddrs, (*Op).checkRoutes, (*Op).checkVeth, d.Check, (*Op).checkForwarding,
	} {
		if err := step(op); err != nil {
			return err
		}
	}
	return nil
}

// Mismatch returns the error of a CHECK that found a difference. Its code is 102.
func Mismatch(format string, args ...any) *spec.Error {
	return spec.Errorf(spec.CodeCheck, format, args...)
}

// Lost is [Mismatch] for what RESTORE cannot restore.
func Lost(format string, args ...any) error { return spec.NeedsAdd(Mismatch(format, args...)) }

// del releases all that the attachment owns. Everything may be missing, and every step is tried.
// The link and the rules are deleted together, with those of other plugins and attachments where there are some. The
// lease is released last, and only after both are gone, so that no address is leased while it is in use.
//
// A runtime repeats a DEL that failed, so only what may succeed next time is an error.
func (p *Plugin) del(ctx context.Context, r *spec.Request) error {
	return r.Call.Session.Together(ctx, func(s *session.Session) error {
		r.Call.Session = s
		return p.release(ctx, r)
	})
}

func (p *Plugin) release(ctx context.Context, r *spec.Request) error {
	d := p.readAnyway(r)
	op, err := p.open(ctx, r, d)
	if err != nil {
		return err
	}
	if !op.hasHostVeth() {
		if err := op.OpenNSIfExists(); err != nil {
			return err
		}
	}
	if op.CheckIPAM() != nil {
		op.Net.IPAM.Type = "" // readAnyway has logged the warning; no ADD has leased from such a plugin
	}
	early := op.leasedOverLink()
	var errs []error
	if early {
		errs = append(errs, op.releaseLease(ctx))
	}
	linkErr := session.Recover(func() error { return d.Remove(op) })
	if linkErr == nil && op.Net.IPAM.Type != "" && !early {
		r.Call.Session.Last(op.releaseLease)
	}
	return errors.Join(append(errs, linkErr, d.Release(op))...)
}

// get returns the result of the ADD: prevResult, if it exists and the IPAM plugin and the links
// still have the attachment; else what these have. An unknown or deleted container has code 3. One
// whose link is gone while its addresses are leased needs a DEL, so its code is not 3.
//
// Addresses and routes are the IPAM plugin's, not the kernel's: GET must not fail because some were
// removed.
func (p *Plugin) get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	d, invalid := p.read(r)
	op, err := p.openWithNS(ctx, r, d) // first: an unknown container is reported for any configuration
	if err != nil {
		return nil, err
	}
	if invalid != nil {
		return nil, invalid
	}
	lost, err := op.describe(d)
	switch {
	case err != nil:
		return nil, err
	case lost != nil && !op.mayHaveLeases():
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
	return op.Result, d.Gateways(op)
}

// describe finds the attachment's links and enters them into the result. lost has code 3: the links
// are gone, or never existed.
func (op *Op) describe(d Driver) (lost *spec.Error, err error) {
	if !op.resources.NoNetdev {
		if op.Link, err = op.Cont.Link(op.IfName); err != nil || !op.isKind(op.Link) {
			return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: no %s interface %s in %s",
				op.Attachment, op.plugin.Kind, op.IfName, op.Call.NetNS), nil
		}
	}
	if err = op.findPort(); err == nil {
		err = d.Found(op)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: %w", op.Attachment, err), nil
	case err != nil && spec.AsError(err).Code == spec.CodeUnknown:
		return spec.AsError(err), nil
	case err != nil:
		return nil, err
	}
	return nil, op.addInterfaces()
}

// status runs the plugin's probe and the IPAM plugin's STATUS.
// A failed probe has code 50; an error of the IPAM plugin keeps its code.
func (p *Plugin) status(ctx context.Context, r *spec.Request) error {
	d, op, err := p.beginWithoutNS(ctx, r)
	if err != nil {
		return err
	}
	if err := d.Probe(op); err != nil {
		return spec.Errorf(spec.CodeNotReady, "%s: %w", r.Net.Type, err)
	}
	if r.Net.IPAM.Type == "" {
		return nil
	}
	return op.delegate(ctx, spec.Status)
}

// gc deletes the links of the network's stale attachments, then runs the plugin's own step and the
// IPAM plugin's GC. An error does not stop it.
func (p *Plugin) gc(ctx context.Context, r *spec.Request) error {
	d := p.readAnyway(r)
	op, err := p.open(ctx, r, d)
	if err != nil {
		return err
	}
	errs := []error{op.collectLinks(), d.Collect(op)}
	if r.Net.IPAM.Type != "" {
		errs = append(errs, op.delegate(ctx, spec.GC))
	}
	return errors.Join(errs...)
}

// restore restores the lease, then the container's side, then the host's. If another attachment has
// the address now, it restores nothing else.
func (p *Plugin) restore(ctx context.Context, r *spec.Request) error {
	d, op, err := p.begin(ctx, r)
	if err != nil {
		return err
	}
	op.Result.IPs, op.Result.Routes = op.OwnAddresses(), slices.Clone(op.Prev.Routes)
	if err := op.Result.CheckGateways(); err != nil {
		return spec.Errorf(spec.CodeConfig, "prevResult: %w", err)
	}
	lease := op.restoreLease()
	if errors.Is(lease, spec.ErrNeedsAdd) {
		return lease
	}
	op.dropOthers(d)
	op.Result.IPs, op.Result.Routes = op.OwnAddresses(), slices.Clone(op.Prev.Routes)
	inside := errors.Join(op.nameNS(), op.restoreInside(d)) // an earlier release has given no ID
	if errors.Is(inside, spec.ErrNeedsAdd) {
		return errors.Join(lease, inside)
	}
	return errors.Join(lease, inside, op.restoreHost(d))
}

// restoreInside sets the container's link up, and adds the addresses and routes of prevResult that
// CHECK would miss. It deletes nothing.
func (op *Op) restoreInside(d Driver) error {
	if op.resources.NoNetdev {
		return nil
	}
	if err := op.restoreLink(); err != nil || op.resources.Down {
		return err
	}
	own := d.Routes(op)
	if err := op.restoreAddrs(own == nil); err != nil {
		return err
	}
	if err := op.restoreOwnRoutes(own); err != nil {
		return err
	}
	return op.restoreRoutes()
}

// restoreHost restores the host's side to its state after ADD.
func (op *Op) restoreHost(d Driver) error {
	if op.plugin.Veth {
		var err error
		if op.Veth, err = op.HostVeth(); err != nil {
			return Lost("host interface: %w", err)
		}
	}
	if err := d.Host(op); err != nil {
		return err
	}
	return op.restoreForwarding()
}

// prepare creates what the attachments of a network share.
func (p *Plugin) prepare(ctx context.Context, r *spec.Request) error {
	return p.runNetworkStep(ctx, r, Network.Prepare)
}

func (p *Plugin) removeNetwork(ctx context.Context, r *spec.Request) error {
	return p.runNetworkStep(ctx, r, Network.RemoveNetwork)
}

func (p *Plugin) runNetworkStep(ctx context.Context, r *spec.Request, step func(Network, *Op) error) error {
	d, op, err := p.beginWithoutNS(ctx, r)
	if err != nil {
		return err
	}
	return step(d.(Network), op)
}
