package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"cnibox/spec"
)

// GC tells the valid set to every plugin in order (from 1.1.0 on), then deletes all
// cached attachments of the network that are not in it, with what their ADD was told.
// It goes on past failures and joins them. No ADD or DEL of the network runs meanwhile.
//
// A plugin's GC takes many attachments away in one go, and leaves little for their DELs
// to do; the other way round each one would wait for the kernel.
//
// The attachments that were, or with dryRun would be, deleted are returned.
func (r *Runner) GC(ctx context.Context, l *List, valid []spec.Attachment, dryRun bool) ([]spec.Attachment, error) {
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
	entries, _, err := r.Cache.List()
	if err != nil {
		return nil, err
	}
	var errs []error
	if !dryRun {
		errs = append(errs, r.Cache.SetAside(r.Warn))
	}
	gone := l.stale(entries, valid)
	r.progress(0, len(gone))
	// Older versions have no GC; the DELs are all there is to do.
	for i := range l.Plugins {
		if dryRun || !v.AtLeast(spec.V110) {
			break
		}
		_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], Target{}, nil, spec.ValidMembers(valid)...)
		errs = append(errs, err)
	}
	stale, err := r.collect(ctx, gone, l, dryRun)
	return stale, errors.Join(append(errs, err)...)
}

// stale are the entries of the network that are not valid, in the order of file names.
func (l *List) stale(entries []*Entry, valid []spec.Attachment) []*Entry {
	keep := make(map[spec.Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	return slices.DeleteFunc(entries, func(e *Entry) bool {
		a := e.Attachment()
		return a.Network != l.Name || keep[a]
	})
}

// collect runs DEL for the entries, and tells how far it is.
func (r *Runner) collect(ctx context.Context, entries []*Entry, l *List, dryRun bool) ([]spec.Attachment, error) {
	var stale []spec.Attachment
	var errs []error
	for i, e := range entries {
		a := e.Attachment()
		if !dryRun {
			err := r.collectOne(ctx, l, e)
			r.progress(i+1, len(entries))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", a, err))
				continue
			}
		}
		stale = append(stale, a)
	}
	return stale, errors.Join(errs...)
}

// progress tells whoever wants to know.
func (r *Runner) progress(done, all int) {
	if r.Progress != nil {
		r.Progress(done, all)
	}
}

// collectOne deletes one attachment under its container's lock. The network's is
// held by GC.
func (r *Runner) collectOne(ctx context.Context, l *List, e *Entry) error {
	unlock, err := r.Cache.lockContainer(ctx, e.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	return r.delEntry(ctx, l, e)
}

// Reap deletes the attachments that match and whose namespace is gone, on all
// networks. It is for what a process left that was killed while it
// had them.
func (r *Runner) Reap(ctx context.Context, match func(spec.Attachment) bool) error {
	entries, _, err := r.Cache.List()
	errs := []error{err}
	for _, e := range entries {
		if match(e.Attachment()) && !e.Live() {
			errs = append(errs, r.reapOne(ctx, e))
		}
	}
	return errors.Join(errs...)
}

// reapOne deletes one attachment, unless another process has done so or has added it
// again since the list was read.
func (r *Runner) reapOne(ctx context.Context, e *Entry) error {
	unlock, err := r.lock(ctx, e.Attachment())
	if err != nil {
		return err
	}
	defer unlock()
	if e, err = r.Cache.Lookup(e.Attachment()); err != nil {
		return ignore(err, os.ErrNotExist) // somebody else was faster
	}
	if e.Live() {
		return nil // added again meanwhile
	}
	return r.delEntry(ctx, &List{Name: e.NetworkName}, e)
}

// ignore turns one kind of error into none.
func ignore(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}

// Attached returns the cached attachments of a network whose namespace
// exists, for a GC that keeps what is alive. An interrupted ADD is not among them.
// One whose namespace is bound to a path lives as long as that, container or not.
func (c *Cache) Attached(network string) ([]spec.Attachment, error) {
	entries, _, err := c.List()
	var live []spec.Attachment
	for _, e := range entries {
		// Where nobody wrote the namespace down, the container may well be alive.
		if e.NetworkName == network && !e.Interrupted() && (e.Live() || e.place() == "") {
			live = append(live, e.Attachment())
		}
	}
	return live, err
}
