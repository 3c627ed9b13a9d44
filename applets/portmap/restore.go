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

// restore publishes again what was published for the attachment.
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
// it, unless it was lost as well: then the last one that is restored has it, as after the ADDs.
func (p *plan) republish(r *spec.Request, x *nft.Tx, maps iter.Seq[nft.PortMap]) error {
	holders := p.dir.holders(r.Attachment)
	for m := range maps {
		err := x.PortMap(r.Attachment, m)
		var taken *nft.TakenError
		if err != nil && errors.As(err, &taken) && taken.Key != r.Attachment.Key() {
			switch holder := holders(taken.Key); {
			case holder.gone, holder.sibling && taken.New:
				m.Replace = true
				err = x.PortMap(r.Attachment, m)
			case holder.sibling:
				continue
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
