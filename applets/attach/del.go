package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"cnibox/spec"
)

// del releases all that the attachment owns. Nothing need exist, and every step is tried. The
// lease is released last, and only when the link is gone, so that no address is leased while it is
// in use.
//
// A runtime repeats a DEL that failed, so only what may succeed next time is an error.
func (p *Interface[P]) del(ctx context.Context, r *spec.Request) error {
	c := p.confOrZero(r)
	ns, err := r.Call.OpenNSIfThere()
	if err != nil {
		return err
	}
	op, err := open(ctx, r, ns)
	if err != nil {
		return err
	}
	defer op.close()

	if op.CheckIPAM() != nil {
		op.Net.IPAM.Type = "" // confOrZero has warned of it; no ADD has had a lease of it
	}
	var errs []error
	early := leasedOverLink(r.Net.IPAM.Type)
	if early {
		errs = append(errs, op.releaseLease(ctx))
	}
	if end := endingIn(ctx); end != nil {
		op.ending = end
		errs = append(errs, guard(func() error { return p.removeLink(ctx, op, c) }), p.Cleanup.run(ctx, op, c))
		if errs[len(errs)-2] == nil && r.Net.IPAM.Type != "" && !early {
			end.lease = op.releaseLease
		}
		end.add()
		return errors.Join(errs...)
	}
	// the kernel takes some 20 ms to delete a link: the other steps run meanwhile
	link := make(chan error, 1)
	go func() { link <- guard(func() error { return p.removeLink(ctx, op, c) }) }()
	cleanupErr := p.Cleanup.run(ctx, op, c)
	// Joined in this order whichever ended first.
	linkErr := <-link
	errs = append(errs, linkErr, cleanupErr)
	if linkErr == nil && r.Net.IPAM.Type != "" && !early {
		errs = append(errs, op.releaseLease(ctx))
	}
	return errors.Join(errs...)
}

// releaseLease runs DEL of the IPAM plugin.
func (op *Op) releaseLease(ctx context.Context) error { return op.delegate(ctx, spec.Del) }

// leasedOverLink reports whether the IPAM plugin sends its release over the link, as dhcp does. It
// is then called before the link is deleted, so the address may be leased again some milliseconds
// before that.
func leasedOverLink(plugin string) bool {
	return plugin == "dhcp" || strings.HasSuffix(plugin, "-dhcp")
}

// delegate runs a verb of the IPAM plugin that has no result.
func (op *Op) delegate(ctx context.Context, v spec.Verb) error {
	_, err := op.Delegate(ctx, op.Net.IPAM.Type, v)
	return err
}

// removeLink deletes the link, by the plugin's own step or by its name in the container. It runs
// concurrently with other steps, on any thread: it uses sockets only.
func (p *Interface[P]) removeLink(ctx context.Context, op *Op, c P) error {
	if p.Remove != nil {
		return p.Remove(ctx, op, c)
	}
	return op.RemoveContainerLink(p.Kind)
}

// RemoveContainerLink deletes the link named IfName from the container if it
// is of the given kind, and does not have the alias of another attachment. It is not an error if it is
// gone. Another link may have the name, as runtimes DEL what they could not ADD.
func (op *Op) RemoveContainerLink(kind string) error {
	if op.Cont == nil {
		return nil
	}
	link, err := op.Cont.Link(op.IfName)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if link.Kind != kind || op.foreign(link) {
		op.Warn("%s in %s is not of %s: kind %q, alias %q: left alone", op.IfName, op.Call.NetNS, op.Attachment, link.Kind, link.Alias)
		return nil
	}
	return op.Cont.DelLink(op.IfName)
}

// guard makes a panic of a step in a goroutine of its own an error, since the recover of the serve
// loop does not see it.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
