package portmap

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Each network of a container gets the same ports: podman, nerdctl and others pass the mappings to
// every ADD. The first attachment publishes them. The ports of the others are pending: when the
// owner is deleted, the next attachment publishes them.

// portsAsked is what an ADD asked for.
type portsAsked struct {
	Conf    conf           `json:"conf"`
	Targets []netip.Prefix `json:"targets"`
}

// pendingPorts is the record of an attachment that could not publish all its ports, since others of
// its container have some of them. It is the file pending/CONTAINER-KEY.json, so the names in that
// directory show which containers have pending ports.
type pendingPorts = record.Record[portsAsked]

// pending is the directory of these records.
func (d portOwners) pending() record.Dir { return record.Dir(filepath.Join(string(d), "pending")) }

// pendingPrefix returns the common prefix of the records of a container.
func pendingPrefix(containerID string) string {
	return spec.Attachment{ContainerID: containerID}.Key() + "-"
}

func pendingName(a spec.Attachment) string { return pendingPrefix(a.ContainerID) + record.Name(a) }

// hasPending reports whether the attachment has pending ports on record.
func (d portOwners) hasPending(a spec.Attachment) bool {
	_, err := os.Lstat(filepath.Join(string(d.pending()), pendingName(a)))
	return err == nil
}

// isPending is hasPending for the key of an attachment.
func (d portOwners) isPending(key string) bool {
	o := d.owner(key)
	return o != nil && d.hasPending(o.Attachment)
}

func (d portOwners) setPending(a spec.Attachment, asked portsAsked) error {
	return d.pending().Write(pendingName(a), &pendingPorts{Head: record.Head{Attachment: a}, Data: asked})
}

// dropPending deletes the records of attachments that have no pending ports any more.
func (d portOwners) dropPending(owners ...spec.Attachment) error {
	if _, err := os.Lstat(string(d.pending())); err != nil {
		return nil
	}
	var errs []error
	for _, a := range owners {
		errs = append(errs, d.pending().Remove(pendingName(a)))
	}
	os.Remove(string(d.pending())) // fails unless the directory is empty
	return errors.Join(errs...)
}

// A nextOwner is an attachment that publishes its pending ports that are free.
type nextOwner struct {
	attachment spec.Attachment
	maps       iter.Seq[nft.PortMap]
}

// nextOwners returns the container's attachments with pending ports, sorted by interface, without
// stale ones and those whose namespace is gone.
func (d portOwners) nextOwners(r *spec.Request, containerID string, stale func(spec.Attachment) bool) (next []*nextOwner, err error) {
	err = d.pending().Each(func(name string) error {
		if !strings.HasPrefix(name, pendingPrefix(containerID)) {
			return nil
		}
		p, err := record.Read[portsAsked](d.pending(), name)
		if err != nil || p.ContainerID != containerID || stale(p.Attachment) || d.gone(p.Attachment.Key()) {
			return nil
		}
		if err := p.Data.Conf.read(false); err != nil {
			r.Warn("%s in %s: %v", name, d.pending(), err)
			return nil
		}
		next = append(next, &nextOwner{p.Attachment, p.Data.Conf.maps(p.Data.Targets)})
		return nil
	})
	slices.SortFunc(next, func(a, b *nextOwner) int { return cmp.Compare(a.attachment.IfName, b.attachment.IfName) })
	return next, err
}

// publishNext publishes the pending ports that are free, and returns the attachments that have no
// pending ports any more. Ports that an attachment has already published stay. An error is a
// warning: the owner's ports are released nevertheless.
func publishNext(r *spec.Request, x *nft.Tx, next []*nextOwner) (published []spec.Attachment) {
	for _, n := range next {
		all := true
		for m := range n.maps {
			err := x.PortMap(n.attachment, m)
			if err == nil {
				continue
			}
			all = false
			if taken := new(nft.TakenError); !errors.As(err, &taken) {
				r.Warn("%v", err)
				break
			}
		}
		if all {
			published = append(published, n.attachment)
		}
	}
	return published
}
