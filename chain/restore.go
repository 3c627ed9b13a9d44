package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// A Together makes the changes of several attachments that can be made at once: those of the
// rule set. The caller implements it, as this package knows nothing of the kernel.
type Together interface {
	// For returns the context in which the plugins of an attachment are to be run. report gets
	// what could not be made of it later.
	For(ctx context.Context, report func(error)) context.Context

	// Make makes what has come together.
	Make(ctx context.Context)
}

// mostTogether is how many attachments are restored at once, and so locked: each lock is an open
// file.
const mostTogether = 200

// A Restored is what became of one attachment.
type Restored struct {
	Attachment spec.Attachment
	Errs       []error  // what could not be restored; none: all was
	External   []string // plugins of other programs, which cannot be asked to restore anything
}

// Restore makes what is missing on the host of the attachments that are alive, in the order in
// which they were added. An attachment with which another verb is at work comes last.
//
// Attachments without a namespace, and interrupted ADDs, are left to DEL and GC. The error is
// the context's; what was not reached then is not in the answer.
func (r *Runner) Restore(ctx context.Context, entries []*Entry, t Together) ([]*Restored, error) {
	w := &restoring{Runner: r, together: t, lists: map[string]*List{}}
	var busy []*entryOf
	for part := range slices.Chunk(alive(entries), mostTogether) {
		busy = append(busy, w.part(ctx, part)...)
	}
	for _, e := range busy {
		w.later(ctx, e)
	}
	return w.all, context.Cause(ctx)
}

// An entryOf is an entry of the cache as it was at a time.
type entryOf struct {
	*Entry
	written time.Time
}

// alive returns the entries of attachments that are to be restored, the oldest first.
func alive(entries []*Entry) (all []*entryOf) {
	for _, e := range entries {
		if e.Attached() {
			all = append(all, &entryOf{e, e.Written()})
		}
	}
	slices.SortStableFunc(all, func(a, b *entryOf) int { return a.written.Compare(b.written) })
	return all
}

// A restoring is one Restore at work.
type restoring struct {
	*Runner
	together Together
	lists    map[string]*List // by the cached configuration
	all      []*Restored
}

// part restores some attachments and returns those that another verb has locked: none is waited
// for while others are locked.
func (w *restoring) part(ctx context.Context, entries []*entryOf) (busy []*entryOf) {
	locks := map[string]func(){} // nil: another process has it
	lock := func(kind, name string, how int) bool {
		unlock, known := locks[kind+name]
		if !known {
			unlock = w.Cache.tryLock(kind, name, how)
			locks[kind+name] = unlock
		}
		return unlock != nil
	}
	for _, e := range entries {
		switch {
		case ctx.Err() != nil:
		case lock("network", e.NetworkName, unix.LOCK_SH) && lock("container", e.ContainerID, unix.LOCK_EX):
			w.one(ctx, e)
		default:
			busy = append(busy, e)
		}
	}
	w.together.Make(ctx)
	for _, e := range entries {
		if locks["container"+e.ContainerID] != nil {
			w.unlocking(e)
		}
	}
	for _, unlock := range locks {
		if unlock != nil {
			unlock()
		}
	}
	return busy
}

// unlocking removes the lock file of a container that another runtime attached, which does not
// remove it.
func (w *restoring) unlocking(e *entryOf) {
	if e.BootID == "" {
		w.Cache.removeLock(e.ContainerID)
	}
}

// later restores one attachment when it is not locked any more.
func (w *restoring) later(ctx context.Context, e *entryOf) {
	unlock, err := w.lock(ctx, e.Attachment())
	if err != nil {
		w.all = append(w.all, &Restored{Attachment: e.Attachment(), Errs: []error{err}})
		return
	}
	defer unlock()
	w.one(ctx, e)
	w.together.Make(ctx)
	w.unlocking(e)
}

// one restores an attachment, unless it was deleted meanwhile.
func (w *restoring) one(ctx context.Context, e *entryOf) {
	if !e.Written().Equal(e.written) {
		now, err := w.Cache.Lookup(e.Attachment())
		if err != nil || !now.Attached() {
			return
		}
		e.Entry = now
	}
	res := &Restored{Attachment: e.Attachment()}
	w.all = append(w.all, res)
	report := func(err error) {
		if err != nil {
			res.Errs = append(res.Errs, err)
		}
	}
	l, prev, err := w.recorded(e.Entry)
	if err != nil {
		report(err)
		return
	}
	t := Target{
		ContainerID: e.ContainerID, IfName: e.IfName, NetNS: e.NetNSPath(),
		Args: e.Args, Capabilities: e.CapabilityArgs,
	}
	ctx = w.together.For(ctx, report)
	for i := range l.Plugins {
		p := &l.Plugins[i]
		verbs, err := w.Invoker.Find(p.Type)
		switch {
		case err != nil:
		case verbs == nil:
			res.External = append(res.External, p.Type)
		case verbs.Restore != nil:
			_, err = w.run(ctx, spec.Restore, l, p, t, prev)
		}
		report(err)
	}
}

// recorded returns the list of an attachment, and its result.
func (w *restoring) recorded(e *Entry) (l *List, prev *spec.Result, err error) {
	if l = w.lists[string(e.Config)]; l == nil || l.Name != e.NetworkName {
		if l, err = e.List(); err != nil {
			return nil, nil, fmt.Errorf("cached configuration: %w", err)
		}
		w.lists[string(e.Config)] = l
	}
	v, err := l.version()
	if err != nil {
		return nil, nil, err
	}
	if prev, err = e.result(v); err == nil && prev == nil {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cached result: %w", err)
	}
	if e.NetNSPath() == "" {
		return nil, nil, errors.New("its network namespace is not recorded")
	}
	return l, prev, nil
}
