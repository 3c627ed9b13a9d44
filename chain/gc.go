package chain

import (
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
	// Live keeps also the attachments in this cache whose namespace exists, and those
	// whose entry cannot be read.
	Live   bool
	DryRun bool // nothing is changed
}

// stale reports whether an entry is to be deleted. The answer holds as long as the lock
// of its network, under which the entry was read, is held.
func (o *GCOptions) stale(e *Entry) bool {
	return !slices.Contains(o.Valid, e.Attachment()) && !(o.Live && e.Attached())
}

// GC runs GC for every plugin in order with the valid set (from 1.1.0 on), then deletes all
// cached attachments of the network that are not in it, with the arguments of their ADD.
// It goes on past failures and joins them. No ADD or DEL of the network runs meanwhile.
//
// A plugin's GC deletes many attachments at once and leaves little for their DELs to do; the
// other way round each one would wait for the kernel.
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
	entries, broken, err := r.Cache.List()
	if err != nil {
		return nil, err
	}
	var stale []*Entry
	valid := slices.Clone(o.Valid)
	for _, e := range entries {
		switch {
		case e.NetworkName != l.Name:
		case o.stale(e):
			stale = append(stale, e)
		case o.Live:
			valid = append(valid, e.Attachment())
		}
	}
	complete := r.reportBroken(broken, l.Name, o)
	var errs []error
	if !o.DryRun {
		errs = append(errs, r.Cache.removeScratch())
	}
	r.progress(0, len(stale))
	// Older versions have no GC; the DELs are all there is to do.
	if complete && !o.DryRun && v.AtLeast(spec.V110) {
		for i := range l.Plugins {
			_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], Target{}, nil, spec.ValidMembers(valid))
			errs = append(errs, err)
		}
	}
	deleted, err := r.deleteAll(ctx, stale, l, o.DryRun)
	return deleted, errors.Join(append(errs, err)...)
}

// reportBroken renames and reports the files that cannot be read, and reports whether the set
// of valid attachments is complete without them. Where it is not, the plugins' GC would delete
// attachments that are alive.
func (r *Runner) reportBroken(broken []Broken, network string, o GCOptions) (complete bool) {
	complete = true
	for _, b := range broken {
		text := r.Cache.rename(&b, o.DryRun)
		if o.Live && b.mayBeOf(network) {
			complete = false
			text += "; its attachment is kept, and the GC of plugins is left out: delete the file if its container is gone, or name with --valid what is to stay"
		} else if b.Renamed() {
			continue
		}
		r.Warn("cache: %v%s", b.err, text)
	}
	return complete
}

// deleteAll runs DEL for the entries and returns the attachments that are gone.
func (r *Runner) deleteAll(ctx context.Context, entries []*Entry, l *List, dryRun bool) ([]spec.Attachment, error) {
	var deleted []spec.Attachment
	var errs []error
	for i, e := range entries {
		a := e.Attachment()
		if !dryRun {
			err := r.deleteOne(ctx, l, e)
			r.progress(i+1, len(entries))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", a, err))
				continue
			}
		}
		deleted = append(deleted, a)
	}
	return deleted, errors.Join(errs...)
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
	errs := []error{err}
	for _, e := range entries {
		if a := e.Attachment(); match(a) && !e.Live() {
			if err := r.deleteStale(ctx, a); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", a, err))
			}
		}
	}
	return errors.Join(errs...)
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
