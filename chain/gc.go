package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"cnibox/spec"
)

// A Sweep says what one GC does. Its zero value deletes all.
type Sweep struct {
	Valid []spec.Attachment // are kept, known to the cache or not
	// Live keeps as well the attachments in the cache whose namespace exists, and those
	// whose entry cannot be read. What other caches know is not known here.
	Live   bool
	DryRun bool // nothing is changed
}

// stale reports whether an entry is to be deleted. The answer holds as long as the lock
// of its network, under which the entry was read, is held.
func (s *Sweep) stale(e *Entry) bool {
	return !slices.Contains(s.Valid, e.Attachment()) && !(s.Live && e.attached())
}

// GC tells the valid set to every plugin in order (from 1.1.0 on), then deletes all
// cached attachments of the network that are not in it, with what their ADD was told.
// It goes on past failures and joins them. No ADD or DEL of the network runs meanwhile.
//
// A plugin's GC takes many attachments away in one go, and leaves little for their DELs
// to do; the other way round each one would wait for the kernel.
//
// The attachments that were, or in a dry run would be, deleted are returned.
func (r *Runner) GC(ctx context.Context, l *List, s Sweep) ([]spec.Attachment, error) {
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
	p, err := r.Cache.plan(l.Name, s)
	if err != nil {
		return nil, err
	}
	errs := []error{r.tend(l.Name, p.broken, s)}
	r.progress(0, len(p.gone))
	// Older versions have no GC; the DELs are all there is to do.
	for i := range l.Plugins {
		if s.DryRun || !v.AtLeast(spec.V110) {
			break
		}
		_, err := r.run(ctx, spec.GC, l, &l.Plugins[i], Target{}, nil, spec.ValidMembers(p.valid)...)
		errs = append(errs, err)
	}
	stale, err := r.collect(ctx, p.gone, l, s.DryRun)
	return stale, errors.Join(append(errs, err)...)
}

// A plan is what a Sweep comes to.
type plan struct {
	valid  []spec.Attachment // for the plugins
	gone   []*Entry          // to be deleted, in the order of file names
	broken []Broken          // to be told of
}

// plan reads the cache for a GC, which has the network's lock: whatever ADD has ended until
// now is known, and none runs.
func (c *Cache) plan(network string, s Sweep) (p plan, err error) {
	entries, broken, err := c.List()
	if err != nil {
		return p, err
	}
	p.broken = broken
	if s.Live {
		aside, err := c.aside()
		if err != nil {
			return p, err
		}
		p.broken = append(p.broken, aside...)
		if p.valid, err = unreadable(network, p.broken); err != nil {
			return p, err
		}
	}
	p.valid = append(p.valid, s.Valid...)
	for _, e := range entries {
		switch {
		case e.NetworkName != network:
		case s.stale(e):
			p.gone = append(p.gone, e)
		case s.Live:
			p.valid = append(p.valid, e.Attachment())
		}
	}
	return p, nil
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
	stale := func(e *Entry) bool { return match(e.Attachment()) && !e.Live() }
	for _, e := range entries {
		if stale(e) {
			errs = append(errs, r.reapOne(ctx, e, stale))
		}
	}
	return errors.Join(errs...)
}

// reapOne deletes one attachment, unless another process has done so or has added it
// again since the list was read: the entry under the lock decides.
func (r *Runner) reapOne(ctx context.Context, e *Entry, stale func(*Entry) bool) error {
	unlock, err := r.lock(ctx, e.Attachment())
	if err != nil {
		return err
	}
	defer unlock()
	if e, err = r.Cache.Lookup(e.Attachment()); err != nil {
		return ignore(err, os.ErrNotExist) // somebody else was faster
	}
	if !stale(e) {
		return nil
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

// attached reports whether an attachment may be alive. An interrupted ADD is none.
// One whose namespace is bound to a path lives as long as that, container or not;
// where nobody wrote the namespace down, the container may well be alive.
func (e *Entry) attached() bool {
	return !e.Interrupted() && (e.Live() || e.place() == "")
}
