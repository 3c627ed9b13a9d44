package portmap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"cnibox/applets/attach"
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
		if p.dir.owner(r.Attachment.Key()) == nil {
			if err := p.dir.record(r, nil, udp); err != nil {
				return err
			}
		}
		return p.dir.restoreLocalnet(ctx, r, maps)
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

// restoreLocalnet switches route_localnet on again, on the link that the record has, or if that
// is gone on the one that leads to the container now.
func (d portOwners) restoreLocalnet(ctx context.Context, r *spec.Request, maps iter.Seq[nft.PortMap]) error {
	if !localnetTarget(maps).IsValid() {
		return nil
	}
	recorded, err := d.localnetOf(ctx, r.Attachment.Key())
	if err != nil {
		return err
	}
	if recorded == "" {
		link, err := localnetLink(r, maps)
		if err != nil {
			return err
		}
		return d.setLocalnet(r.Attachment, link)
	}
	index, _ := cutLocalnetName(recorded)
	err = attach.Once(ctx, fmt.Sprintf("localnet %d", index), func() error { return enableLocalnetAt(index) })
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return d.moveLocalnet(r, maps, recorded)
}

// localnetOf returns the name of the record of an attachment; empty: there is none. The names are
// listed once for all that are restored, and again where the record is not among them or has
// been deleted since.
func (d portOwners) localnetOf(ctx context.Context, key string) (name string, err error) {
	uses := d.localnetUses()
	list := func() (names map[string]string, err error) {
		names = map[string]string{}
		err = uses.Each(func(name string) error {
			_, of := cutLocalnetName(name)
			names[of] = name
			return nil
		})
		return names, err
	}
	names, err := attach.Known(ctx, "localnet "+string(uses), list)
	if err == nil && !uses.Has(names[key]) {
		names, err = list()
	}
	return names[key], err
}

// enableLocalnetAt is enableLocalnet by the index of the link; os.ErrNotExist: it is gone.
func enableLocalnetAt(index uint32) error {
	host, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.LinkAt(index)
	if err != nil {
		return err
	}
	return enableLocalnet(link.Name)
}

// moveLocalnet is restoreLocalnet for a link in place of the recorded one, whose value without
// any mapping counts for it as well.
func (d portOwners) moveLocalnet(r *spec.Request, maps iter.Seq[nft.PortMap], recorded string) error {
	link, err := localnetLink(r, maps)
	if err != nil {
		return err
	}
	uses := d.localnetUses()
	if link != nil {
		use := localnetUse{Was: "0"} // the kernel's default, for a record that cannot be read
		_ = uses.Read(recorded, &use)
		use.Owner, use.Link = record.OwnerOf(r.Attachment), link.Name
		if err := uses.Write(localnetName(link, r.Attachment), use); err != nil {
			return err
		}
		if err := enableLocalnet(link.Name); err != nil {
			return err
		}
	}
	return uses.Remove(recorded)
}

// isPending reports whether the attachment of a key has pending ports.
func (d portOwners) isPending(key string) bool {
	o := d.owner(key)
	return o != nil && d.hasPending(o.Attachment())
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
