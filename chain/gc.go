package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// GCOptions say which attachments one GC deletes. The zero value deletes all.
type GCOptions struct {
	Valid []spec.Attachment // not deleted, whether or not the cache has them
	// Live also keeps attachments that are alive: those in this cache whose namespace exists or
	// whose entry is unreadable, and owners that are alive.
	Live   bool
	DryRun bool // nothing is changed

	// Owners finds the attachments with a link, an element or a lease of the network, with or
	// without an entry in the cache; entries has those of the network. It is called under the
	// network's lock; nil: no owners are searched.
	Owners func(l *List, entries []*Entry) ([]Owner, error)
}

// An Owner is an attachment that owns something on the host.
type Owner struct {
	spec.Attachment        // the interface is empty if a lease does not have it
	Alive           string // the evidence, as a sentence without a subject; empty: it is not alive
}

// is reports whether the owner is the attachment.
func (o *Owner) is(a spec.Attachment) bool {
	return o.Attachment == a || o.IfName == "" && o.ContainerID == a.ContainerID && o.Network == a.Network
}

// GC deletes all cached attachments of the network that are not valid, with the arguments of their
// ADD. Then it runs GC of every plugin in order with the valid set, which deletes the resources of
// all other attachments; before 1.1.0, which has no GC, it runs DEL for each owner. It continues
// after failures and joins them. No ADD or DEL of the network runs meanwhile.
//
// A DEL releases resources that GC cannot, such as a lease for the link that a plugin's GC deletes.
//
// It returns the attachments that were deleted, or that a dry run would delete.
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

// deleteOrphans deletes the resources of attachments without an entry, and returns these: by the
// plugins' GC, or before 1.1.0 by a DEL of each.
func (r *Runner) deleteOrphans(ctx context.Context, l *List, v spec.Version, c *collection, dryRun bool) ([]spec.Attachment, error) {
	var errs []error
	switch {
	case dryRun:
	case v.AtLeast(spec.V110):
		errs = r.gcAll(ctx, l, c.valid)
	default:
		for _, a := range c.orphans {
			t := RuntimeConf{ContainerID: a.ContainerID, IfName: cmp.Or(a.IfName, "eth0")}
			end := r.begin(&t, t.On(l))
			errs = append(errs, r.delAll(ctx, l, t, nil, true)...)
			end()
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c.orphans, nil
}

// gcAll runs GC for all plugins in order, and returns their errors.
func (r *Runner) gcAll(ctx context.Context, l *List, valid []spec.Attachment) (errs []error) {
	var t RuntimeConf
	defer r.begin(&t, spec.Attachment{})()
	for i := range l.Plugins {
		_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], t, nil, spec.ValidMembers(valid))
		errs = append(errs, err)
	}
	return errs
}

// A collection says what a GC keeps and what it deletes.
type collection struct {
	valid    []spec.Attachment
	stale    []*Entry
	orphans  []spec.Attachment // without an entry, and not valid
	complete bool              // valid has all attachments that are alive
}

// collection computes it, and warns about attachments that are kept against the cache's state.
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
		case o.Live && alive[a] != "" && e.ownsNothing():
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

// kept warns about an attachment that seems to be stale but is kept.
func (r *Runner) kept(e *Entry, seems, alive string) {
	r.Warn("%s is kept: %s, but %s; `%s` detaches it", e.Title(), seems, alive, e.DelCommand())
}

// reportBroken warns of the unreadable files, and reports whether the valid set is complete without
// them. If it is not, the plugins' GC would delete attachments that are alive.
func (r *Runner) reportBroken(broken []Broken, network string, o GCOptions) (complete bool) {
	complete = true
	for _, b := range broken {
		text := ""
		if o.Live && b.mayBeOf(network) {
			complete = false
			text = "; its attachment is kept, and the GC of plugins is left out: delete the file if its container is gone, or name with --all and --keep what is to stay"
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

// deleteOne deletes one attachment under its container's lock. GC holds the network's lock.
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

// DeleteStale deletes the matching attachments whose namespace is gone, on all networks: a process
// was killed before it could delete them.
func (r *Runner) DeleteStale(ctx context.Context, match func(spec.Attachment) bool) error {
	entries, _, err := r.Cache.List()
	entries = slices.DeleteFunc(entries, func(e *Entry) bool { return !match(e.Attachment()) || e.Live() })
	_, failed := (&deleting{Runner: r.Once(), list: &List{}}).run(ctx, entries)
	return errors.Join(err, failed)
}

// deleteStale deletes one attachment, unless another process has deleted it, or added it again
// since the list was read: it reads the entry again under the lock.
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
