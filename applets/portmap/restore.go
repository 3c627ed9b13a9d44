package portmap

import (
	"context"
	"errors"
	"iter"

	"cnibox/applets/record"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// restore publishes again what was published for the attachment. What is pending stays
// so, as long as another attachment of the container has it.
func restore(ctx context.Context, r *spec.Request) error {
	p, err := readPlan(r)
	if err != nil {
		return err
	}
	maps := p.maps(targetsOf(r.Prev, r.IfName))
	if noMaps(maps) {
		return nil
	}
	if err := r.CheckIndexes(); err != nil {
		return err
	}
	udp := udpPorts(p.wishes)
	err = record.Dir(p.dir).Make().Locked(ctx, func() error {
		if p.dir.owner(r.Attachment.Key()) != nil {
			return nil
		}
		err := p.dir.record(r, nil, udp)
		if err == nil {
			r.Did("record of the ports written")
		}
		return err
	})
	if err != nil {
		return err
	}
	lost := false
	publish := func(x *nft.Tx) error {
		if err := p.republish(r, x, maps); err != nil {
			return err
		}
		lost = !x.Had(r.Attachment)
		return nil
	}
	return nft.Open(rtnl.Host()).UpdateThen(ctx, publish, func(_ context.Context, err error) error {
		if err == nil && lost {
			forgetAstray(r, udp)
		}
		if err == nil { // after the transaction, as in ADD
			err = restoreLocalnet(r, maps)
		}
		return err
	})
}

// republish plans the mappings. A port that another attachment of the container has stays with
// it, unless it is only pending there: then that one came first in this restore.
func (p *plan) republish(r *spec.Request, x *nft.Tx, maps iter.Seq[nft.PortMap]) error {
	holders := p.dir.holders(r.Attachment)
	pending := p.dir.hasPending(r.Attachment)
	for m := range maps {
		err := x.PortMap(r.Attachment, m)
		var taken *nft.TakenError
		if err != nil && errors.As(err, &taken) && taken.Key != r.Attachment.Key() {
			switch holder := holders(taken.Key); {
			case holder.sibling && pending:
				continue
			case holder.gone, holder.sibling && p.dir.isPending(taken.Key):
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
func restoreLocalnet(r *spec.Request, maps iter.Seq[nft.PortMap]) error {
	link, err := localnetLink(r, maps)
	if err != nil || link == nil {
		return err
	}
	if err := setLocalnet(link, "1"); err != nil {
		return err
	}
	r.Did("%s set to 1", localnetKey(link.Name))
	return nil
}

// forgetAstray deletes the connection tracking entries of UDP flows that began while the ports
// were not published, so that the next packet is translated.
func forgetAstray(r *spec.Request, udp []udpPort) {
	if len(udp) == 0 {
		return
	}
	if err := nft.Open(rtnl.Host()).FlushAstrayUDP(addrPorts(udp)); err != nil {
		r.Warn("connection tracking entries of UDP ports: %v", err)
	}
}
