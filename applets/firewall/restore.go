package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// restore is the RESTORE of Apply: it sets port isolation, then adds the elements and the rules in
// the filter tables. After the transaction, which other attachments may share, it adds the
// addresses to the zone, which firewalld forgets on reload: its answer may take seconds.
func (p *plan) restore(ctx context.Context, op *chained.Op) error {
	r, recorded := op.Request, readRules(op)
	p.ips = p.own(recorded)
	isolates := p.isolated && slices.ContainsFunc(p.ports, func(port *rtnl.Link) bool { return !port.Isolated })
	if err := p.isolate(op, func(string, func(context.Context) error) {}); err != nil { // the flag stays, whatever follows
		return err
	}
	if isolates {
		r.Did("port isolation set")
	}
	enlist := func(x *nft.Tx) error {
		recorded.setHandles(op, x, p.ips...)
		x.RecordOwner(r.Attachment)
		return p.update(r)(x)
	}
	return op.Rules().UpdateThen(ctx, enlist, func(ctx context.Context, err error) error {
		if err == nil {
			err = recorded.write(op)
		}
		if err != nil || !p.firewalld || len(p.ips) == 0 {
			return err
		}
		return p.restoreZone(ctx, r)
	})
}

// A busName is the key of a [bus], by its addresses.
type busName string

// A bus is what the attachments of a session know of firewalld's.
type bus struct{ failed error }

// restoreZone adds the addresses to the zone. A bus that has failed for one attachment is not used
// for the others.
func (p *plan) restoreZone(ctx context.Context, r *spec.Request) error {
	b, _ := session.Ask(r.Call.Session, busName(strings.Join(p.bus, " ")), func() (*bus, error) { return &bus{}, nil })
	if b.failed != nil {
		return fmt.Errorf("zone %q is not tried, since for another attachment: %w", p.zone, b.failed)
	}
	z, err := dialZone(ctx, p)
	if err == nil {
		defer z.close()
		if z.checkAll(p.ips) == nil {
			return nil
		}
		if err = z.addAll(p.ips); err == nil {
			r.Did("addresses added to zone %s", p.zone)
		}
	}
	if err != nil && !errors.As(err, new(*dbus.Error)) { // a dbus.Error is an answer
		b.failed = err
	}
	return err
}
