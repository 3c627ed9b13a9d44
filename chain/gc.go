package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"cnibox/spec"
)

// GC deletes all cached attachments of a network that are not in the valid set,
// with what their ADD was told, then tells the set to every plugin in order
// (from 1.1.0 on). It goes on past failures and joins them. No ADD or DEL of the
// network runs meanwhile.
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
	stale, err := r.collect(ctx, l, entries, valid, dryRun)
	errs = append(errs, err)
	// Older versions have no GC; the DELs were all there is to do.
	if dryRun || !v.AtLeast(spec.V110) {
		return stale, errors.Join(errs...)
	}
	for i := range l.Plugins {
		_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], Target{}, nil, spec.ValidMembers(valid)...)
		errs = append(errs, err)
	}
	return stale, errors.Join(errs...)
}

// collect runs DEL for the entries of the network that are not valid.
// Entries are in the order of file names. Those of other networks stay.
func (r *Runner) collect(ctx context.Context, l *List, entries []*Entry, valid []spec.Attachment, dryRun bool) ([]spec.Attachment, error) {
	var stale []spec.Attachment
	var errs []error
	for _, e := range entries {
		a := e.Attachment()
		if a.Network != l.Name || slices.Contains(valid, a) {
			continue
		}
		if dryRun {
			stale = append(stale, a)
			continue
		}
		if err := r.collectOne(ctx, l, e); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a, err))
			continue
		}
		stale = append(stale, a)
	}
	return stale, errors.Join(errs...)
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
