package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"cnibox/spec"
)

// GCOptions say which attachments one GC deletes. The zero value deletes all.
type GCOptions struct {
	Valid []spec.Attachment // are kept, known to the cache or not
	// Live keeps also the attachments that are alive: those in this cache whose namespace exists
	// or whose entry cannot be read, and owners that are alive.
	Live   bool
	DryRun bool // nothing is changed

	// Owners finds what has a link, an element or a lease of the network, whether or not the cache
	// has an entry of it; the entries are those of the network. It is called with the network's
	// lock; nil: there is nothing to find.
	Owners func(l *List, entries []*Entry) ([]Owner, error)
}

// An Owner is an attachment that owns something on the host.
type Owner struct {
	spec.Attachment        // the interface is empty where a lease does not have it
	Alive           string // the sign of it, as a sentence without a subject; empty: it is not alive
}

// is reports whether the owner is an attachment.
func (o *Owner) is(a spec.Attachment) bool {
	return o.Attachment == a || o.IfName == "" && o.ContainerID == a.ContainerID && o.Network == a.Network
}

// GC deletes all cached attachments of the network that are not valid, with the arguments of their
// ADD, and then runs GC for every plugin in order with the valid set, which deletes what else belongs
// to no valid attachment; before 1.1.0, which has no GC, that is DEL for each owner. It goes on past
// failures and joins them. No ADD or DEL of the network runs meanwhile.
//
// A DEL releases what GC cannot, as a lease over the link that a plugin's GC deletes.
//
// The attachments that were, or in a dry run would be, deleted are returned.
func (r *Runner) GC(ctx context.Context, l *List, o GCOptions) ([]spec.Attachment, error) {
	if l.DisableGC {
		return nil, nil
	}
	if err := spec.CheckNetworkName(l.Name); err != nil {
		return nil, err
	}
	v, err := l.version()
	if err != nil {
		return nil, err
	}
	unlock, err := r.Cache.lockNetwork(ctx, l.Name, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r = r.Once()
	c, err := r.collection(l, o)
	if err != nil {
		return nil, err
	}
	var errs []error
	var deleted []spec.Attachment
	if !o.DryRun {
		errs = append(errs, r.Cache.removeScratch())
	}
	if o.DryRun {
		for _, e := range c.stale {
			deleted = append(deleted, e.Attachment())
		}
	} else {
		deleted, err = r.deleteAll(ctx, c.stale, l)
		errs = append(errs, err)
	}
	if c.complete && ctx.Err() == nil {
		orphans, err := r.deleteOrphans(ctx, l, v, c, o.DryRun)
		deleted, errs = append(deleted, orphans...), append(errs, err)
	}
	return deleted, errors.Join(errs...)
}

// deleteOrphans deletes what belongs to attachments without an entry, and returns these: by the
// plugins' GC, or before there was one by a DEL of each.
func (r *Runner) deleteOrphans(ctx context.Context, l *List, v spec.Version, c *collection, dryRun bool) ([]spec.Attachment, error) {
	var errs []error
	switch {
	case dryRun:
	case v.AtLeast(spec.V110):
		for i := range l.Plugins {
			_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], Target{}, nil, spec.ValidMembers(c.valid))
			errs = append(errs, err)
		}
	default:
		for _, a := range c.orphans {
			errs = append(errs, r.delAll(ctx, l, Target{ContainerID: a.ContainerID, IfName: cmp.Or(a.IfName, "eth0")}, nil, true)...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c.orphans, nil
}

// A collection is what a GC is to keep and to delete.
type collection struct {
	valid    []spec.Attachment
	stale    []*Entry
	orphans  []spec.Attachment // of no entry, and not valid
	complete bool              // valid has all that is alive
}

// collection decides it, and warns of what is kept though the cache alone would not say so.
func (r *Runner) collection(l *List, o GCOptions) (*collection, error) {
	entries, broken, err := r.Cache.List()
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e *Entry) bool { return e.NetworkName != l.Name })
	var owners []Owner
	if o.Owners != nil {
		owners, err = o.Owners(l, entries)
	}
	switch {
	case err != nil && o.Live:
		return nil, err
	case err != nil:
		r.Warn("%v: the list of what is deleted without a cache entry is incomplete", err)
	}
	c := &collection{valid: slices.Clone(o.Valid), complete: r.reportBroken(broken, l.Name, o)}
	known := make(map[spec.Attachment]bool)
	alive := make(map[spec.Attachment]string)
	for _, owner := range owners {
		alive[owner.Attachment] = owner.Alive
	}
	for _, e := range entries {
		a := e.Attachment()
		known[a], known[spec.Attachment{Network: a.Network, ContainerID: a.ContainerID}] = true, true
		switch {
		case slices.Contains(o.Valid, a):
		case o.Live && e.Attached():
			c.valid = append(c.valid, a)
		case o.Live && !e.Interrupted() && alive[a] != "":
			c.valid = append(c.valid, a)
			r.kept(e, e.NetNSPath()+" is not its network namespace any more", alive[a])
		case o.Live && alive[a] != "" && e.refused():
			c.valid = append(c.valid, a)
			r.kept(e, "its last ADD was interrupted", alive[a])
		default:
			c.stale = append(c.stale, e)
		}
	}
	for _, owner := range owners {
		switch {
		case known[owner.Attachment] || slices.ContainsFunc(o.Valid, owner.is):
		case o.Live && owner.Alive != "":
			c.valid = append(c.valid, owner.Attachment)
			r.kept(EntryOf(owner.Attachment), fmt.Sprintf("%s has no entry of it", r.Cache.Dir), owner.Alive)
		default:
			c.orphans = append(c.orphans, owner.Attachment)
		}
	}
	return c, nil
}

// kept warns of an attachment that seems to be stale, and is not.
func (r *Runner) kept(e *Entry, seems, alive string) {
	r.Warn("%s is kept: %s, but %s; `%s` detaches it", e.Title(), seems, alive, DelCommand(e.Attachment()))
}

// DelCommand is the command that deletes an attachment.
func DelCommand(a spec.Attachment) string {
	return fmt.Sprintf("cni-exec del %s --container-id %s -i %s", a.Network, a.ContainerID, a.IfName)
}

// reportBroken names the files that cannot be read, and reports whether the set
// of valid attachments is complete without them. Where it is not, the plugins' GC would delete
// attachments that are alive.
func (r *Runner) reportBroken(broken []Broken, network string, o GCOptions) (complete bool) {
	complete = true
	for _, b := range broken {
		text := ""
		if o.Live && b.mayBeOf(network) {
			complete = false
			text = "; its attachment is kept, and the GC of plugins is left out: delete the file if its container is gone, or name with --valid what is to stay"
		}
		r.Warn("cache: %v%s", b.err, text)
	}
	return complete
}

// deleteAll runs DEL for the entries, with the network's lock, and returns the attachments that are
// gone.
func (r *Runner) deleteAll(ctx context.Context, entries []*Entry, l *List) ([]spec.Attachment, error) {
	return (&deleting{Runner: r, list: l, owned: true}).run(ctx, entries)
}

// deleteOne deletes one attachment under its container's lock. The network's is
// held by GC.
func (r *Runner) deleteOne(ctx context.Context, l *List, e *Entry) error {
	unlock, err := r.Cache.lockContainer(ctx, e.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.delEntry(ctx, l, e); err != nil {
		return err
	}
	r.Cache.removeLock(e.ContainerID)
	return nil
}

// progress calls Progress, if it is set.
func (r *Runner) progress(done, all int) {
	if r.Progress != nil {
		r.Progress(done, all)
	}
}

// DeleteStale deletes the attachments that match and whose namespace is gone, on all
// networks: those of a process that was killed before it could delete them.
func (r *Runner) DeleteStale(ctx context.Context, match func(spec.Attachment) bool) error {
	entries, _, err := r.Cache.List()
	entries = slices.DeleteFunc(entries, func(e *Entry) bool { return !match(e.Attachment()) || e.Live() })
	_, failed := (&deleting{Runner: r.Once(), list: &List{}}).run(ctx, entries)
	return errors.Join(err, failed)
}

// deleteStale deletes one attachment, unless another process has done so or has added it
// again since the list was read: the entry under the lock decides.
func (r *Runner) deleteStale(ctx context.Context, a spec.Attachment) error {
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	e, err := r.Cache.Lookup(a)
	if err != nil || e.Live() {
		return ignore(err, os.ErrNotExist)
	}
	if err := r.delEntry(ctx, &List{Name: e.NetworkName}, e); err != nil {
		return err
	}
	r.Cache.removeLock(a.ContainerID)
	return nil
}

// ignore returns nil for one kind of error.
func ignore(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}
