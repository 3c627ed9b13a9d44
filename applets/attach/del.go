package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"cnibox/applets/netns"
	"cnibox/spec"
)

// del releases all that the attachment owns. Nothing need exist, and every
// step is tried; the lease goes last, and only when the link is gone, so that
// an address is never handed out while it is in use.
//
// A runtime repeats a DEL that failed, so it fails only with what may work next time.
func (p Interface[P]) del(ctx context.Context, r *spec.Request) error {
	c := p.confOrZero(r)
	ns, err := netns.OpenIfThere(r.Call)
	if err != nil {
		return err
	}
	op, err := open(r, ns)
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
		errs = append(errs, op.delegate(ctx, spec.Del))
	}
	// the kernel takes some 20 ms to take a link down: time for all the rest
	link := make(chan error, 1)
	go func() { link <- guard(func() error { return p.removeLink(ctx, op, c) }) }()
	cleanupErr := p.Cleanup.run(ctx, op, c)
	// Joined in this order whichever ended first.
	linkErr := <-link
	errs = append(errs, linkErr, cleanupErr)
	if linkErr == nil && r.Net.IPAM.Type != "" && !early {
		errs = append(errs, op.delegate(ctx, spec.Del))
	}
	return errors.Join(errs...)
}

// leasedOverLink is whether an IPAM plugin releases its lease over the link: dhcp, whose
// client runs in the container. So the lease cannot wait until the link is gone; for some
// milliseconds the address may be leased to another while the link has it.
func leasedOverLink(plugin string) bool {
	return plugin == "dhcp" || strings.HasSuffix(plugin, "-dhcp")
}

// delegate runs a verb without a result of the IPAM plugin.
func (op *Op) delegate(ctx context.Context, v spec.Verb) error {
	_, err := op.Delegate(ctx, op.Net.IPAM.Type, v)
	return err
}

// removeLink takes the link away, by the plugin's own step or by its name in the
// container. It runs beside the flow, on any thread: sockets are all it uses.
func (p Interface[P]) removeLink(ctx context.Context, op *Op, c P) error {
	if p.Remove != nil {
		return p.Remove(ctx, op, c)
	}
	return op.RemoveContainerEnd(p.Kind)
}

// RemoveContainerEnd deletes the link named IfName from the container if it
// is of the given kind, and not labelled as another attachment's. One that is gone
// already is no error.
// Another link under the name was put there after ours had gone, or had kept ours from
// being made: runtimes DEL what they could not ADD.
func (op *Op) RemoveContainerEnd(kind string) error {
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

// guard makes a panic of a step that runs beside the flow an error of it.
// There the recover of the serve loop does not reach.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
