package portmap

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// republish is the RESTORE of Apply: it publishes the attachment's ports again. A pending port
// stays pending while another attachment of the container has it.
func (c *conf) republish(ctx context.Context, op *chained.Op, maps iter.Seq[nft.PortMap]) error {
	r, dir, asked := op.Request, portOwners(op.Dir), portsOf(c.mappings, maps)
	unlock, err := op.Dir.Lock(ctx)
	if err != nil {
		return err
	}
	if old := dir.owner(r.Attachment.Key()); old == nil || !old.Data.has(asked) {
		if err = dir.record(r, old, asked); err == nil && old == nil {
			r.Did("record of the ports written")
		}
	}
	unlock()
	if err != nil {
		return err
	}
	publish := func(x *nft.Tx) error { return dir.plan(r, x, maps) }
	return op.Rules().UpdateThen(ctx, publish, func(_ context.Context, err error) error {
		if err == nil {
			flushAstray(r, asked.UDP)
		}
		if err == nil { // after the transaction, as in ADD
			err = restoreLocalnet(op, maps)
		}
		return err
	})
}

// has reports whether a record names all ports, or none.
func (p ports) has(asked ports) bool {
	return p.Ports == nil || asked.Ports != nil && len(merge(p.Ports, asked.Ports)) == len(p.Ports)
}

// plan plans the mappings. A port of another attachment of the container stays with that, unless it
// is only pending there: then the other attachment was restored first.
func (d portOwners) plan(r *spec.Request, x *nft.Tx, maps iter.Seq[nft.PortMap]) error {
	holders := d.holders(r.Attachment)
	pending := d.hasPending(r.Attachment)
	for m := range maps {
		err := x.PortMap(r.Attachment, m)
		var taken *nft.TakenError
		if err != nil && errors.As(err, &taken) && taken.OwnerKey() != r.Attachment.Key() {
			switch holder := holders(taken.OwnerKey()); {
			case holder.sibling && pending:
				continue
			case holder.gone, holder.sibling && d.isPending(taken.OwnerKey()):
				m.Replace = true
				err = x.PortMap(r.Attachment, m)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreLocalnet sets route_localnet, as ADD does, where it is off.
func restoreLocalnet(op *chained.Op, maps iter.Seq[nft.PortMap]) error {
	link, err := localnetLink(op, maps)
	if err != nil || link == nil {
		return err
	}
	if err := setLocalnet(link, "1"); err != nil {
		return err
	}
	op.Did("%s set to 1", localnetKey(link.Name))
	return nil
}

// flushAstray deletes the connection tracking entries of UDP flows to the ports that do not lead to
// the container, so that their next packets are translated: the rule may be younger than the flow,
// whoever has written it.
func flushAstray(r *spec.Request, udp []udpPort) {
	if len(udp) == 0 {
		return
	}
	var own []netip.Addr
	for _, t := range targetsOf(r.Prev, r.IfName) {
		own = append(own, t.Addr())
	}
	n, err := nft.In(r.Call.Session).FlushAstrayUDP(addrPorts(udp), own...)
	switch {
	case err != nil:
		r.Warn("connection tracking entries of UDP ports: %v", err)
	case n > 0:
		r.Did("%d UDP flows older than their rule ended", n)
	}
}
