//go:build !no_portmap

package applets

import (
	"errors"
	"iter"
	"net/netip"
	"slices"

	"cnibox/nft"
	"cnibox/spec"
)

// A container with several networks is given the same ports by each of them:
// podman, nerdctl and others hand the mappings to every ADD. The first attachment
// publishes them, the others wait; when the first one goes, the next has them. (In the
// reference each has rules of its own, of which the oldest get the packets.)

// portsAsked is what an ADD asked for, kept by one that waits.
type portsAsked struct {
	Conf    portmapConf    `json:"conf"`
	Targets []netip.Prefix `json:"targets"`
}

// asked returns what to keep of this ADD.
func (p *portmapPlan) asked(r *spec.Request) *portsAsked {
	return &portsAsked{*p.conf, portmapTargets(r.Prev, r.IfName)}
}

// sibling reports whether the key is that of another attachment of the same
// container, as far as there is a note about it.
func (d portOwners) sibling(key string, a spec.Attachment) bool {
	o := d.owner(key)
	return o != nil && o.ContainerID == a.ContainerID && key != a.Key()
}

// wait notes that an attachment waits for ports of the holders, at both ends.
// No holder, no wait.
func (d portOwners) wait(a spec.Attachment, holders []string, asked *portsAsked) error {
	if len(holders) == 0 {
		return nil
	}
	mine := d.owner(a.Key())
	if mine == nil {
		return spec.Errorf(spec.CodeIO, "portmap: the note about %s is gone", a)
	}
	mine.Waits = asked
	if err := records(d).write(a.Key()+".json", mine); err != nil {
		return err
	}
	for _, key := range holders {
		if err := d.bequeath(key, a.Key()); err != nil {
			return err
		}
	}
	return nil
}

// bequeath notes an heir of an owner. An owner without a note has none.
func (d portOwners) bequeath(key, heir string) error {
	o := d.owner(key)
	if o == nil || slices.Contains(o.Heirs, heir) {
		return nil
	}
	o.Heirs = append(o.Heirs, heir)
	return records(d).write(key+".json", o)
}

// A portHeir is an attachment that waits for ports of one that goes.
type portHeir struct {
	a     spec.Attachment
	maps  iter.Seq[nft.PortMap]
	still string // key of the one that it waits for next; "": it waits no longer
}

// heirs returns those that wait for ports of the owner, nil: none, in the order of their
// ADD. Those that are gone themselves, in whatever way, or stale, are left out.
func (d portOwners) heirs(r *spec.Request, of *portOwner, stale func(*portOwner) bool) (heirs []*portHeir) {
	if of == nil {
		return nil
	}
	for _, key := range of.Heirs {
		o := d.owner(key)
		if o == nil || o.Waits == nil || o.ContainerID != of.ContainerID || stale(o) || d.gone(key) {
			continue
		}
		p, err := o.Waits.Conf.plan()
		if err != nil {
			r.Warn("a note in %s: %v", d, err)
			continue
		}
		heirs = append(heirs, &portHeir{a: o.attachment(), maps: p.maps(o.Waits.Targets)})
	}
	return heirs
}

// inherit has the heirs publish what they wait for. What goes wrong with one costs a
// warning: the ports of the owner go all the same.
func inherit(r *spec.Request, x *nft.Tx, heirs []*portHeir) {
	for _, h := range heirs {
		if err := h.inherit(x); err != nil {
			r.Warn("%v", err)
		}
	}
}

// inherit publishes what the heir asked for and nobody else has. What it has
// already stays.
func (h *portHeir) inherit(x *nft.Tx) error {
	h.still = "" // of an earlier try
	for m := range h.maps {
		err := x.PortMap(h.a, m)
		var taken *nft.TakenError
		switch {
		case errors.As(err, &taken):
			h.still = taken.Key
		case err != nil:
			return err
		}
	}
	return nil
}

// handOn notes whom the heirs wait for that have not got everything.
func (d portOwners) handOn(heirs []*portHeir) error {
	var errs []error
	for _, h := range heirs {
		if h.still != "" {
			errs = append(errs, d.bequeath(h.still, h.a.Key()))
		}
	}
	return errors.Join(errs...)
}
