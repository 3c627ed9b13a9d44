package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// A Restored is the result of [Runner.Restore] for one attachment.
type Restored struct {
	*snapshot
	Did       []string // what was made or set, in this order, in a few words each
	Errs      []error  // of the plugins' RESTORE; if it had none, of CHECK
	Unchecked string   // why CHECK was not run; empty: it was
	Busy      bool     // nothing was done, since another verb was at work
	External  []string // external plugins, which have no RESTORE

	begun bool
	list  *List
	prev  *spec.Result
}

// Restore makes the missing parts of the attachments that are alive, the oldest first and several at a
// time, and runs CHECK of each. Attachments that another verb has locked come last. done is called
// with each one as soon as it is finished.
//
// s is a session for many attachments. DEL and GC handle attachments without a namespace, and interrupted ADDs. The error is the
// context's; done is not called with the remaining attachments then.
func (r *Runner) Restore(ctx context.Context, entries []*Entry, s *session.Session, done func(*Restored)) error {
	verb := r.Once()
	verb.Session = s
	w := &restoring{Runner: verb, done: done}
	var busy []*snapshot
	for part := range slices.Chunk(w.alive(ctx, entries), batchSize()) {
		busy = append(busy, w.restoreUnlocked(ctx, part)...)
	}
	if len(busy) > 0 {
		waiting, cancel := context.WithTimeout(ctx, w.Cache.patience())
		defer cancel()
		for _, e := range busy {
			w.restoreLocked(ctx, waiting, e)
		}
	}
	return context.Cause(ctx)
}

// A snapshot is an entry of the cache and the modification time of its file, by which a later change
// is noticed.
type snapshot struct {
	*Entry
	written time.Time
}

// alive returns the entries of attachments that are to be restored, the oldest first.
func (r *Runner) alive(ctx context.Context, entries []*Entry) (all []*snapshot) {
	found := make([]*snapshot, len(entries))
	r.ForEach(ctx, len(entries), func(i int) string { return entries[i].ContainerID }, func(_ *Runner, i int) {
		if e := entries[i]; e.Attached() {
			found[i] = &snapshot{e, e.Written()}
		}
	}, nil)
	all = slices.DeleteFunc(found, func(e *snapshot) bool { return e == nil })
	slices.SortStableFunc(all, func(a, b *snapshot) int { return a.written.Compare(b.written) })
	return all
}

// A restoring is a [Runner.Restore] in progress.
type restoring struct {
	*Runner
	done     func(*Restored)
	restored []*Restored // done has not been called with them
}

// restoreUnlocked restores some attachments and returns those that another verb has locked: it does not
// wait for a lock while it has others.
func (w *restoring) restoreUnlocked(ctx context.Context, entries []*snapshot) (busy []*snapshot) {
	locks := w.Cache.locks()
	var locked []*snapshot
	for _, e := range entries {
		switch {
		case ctx.Err() != nil:
		case locks.try("network", e.NetworkName, unix.LOCK_SH) && locks.try("container", e.ContainerID, unix.LOCK_EX):
			locked = append(locked, e)
		default:
			busy = append(busy, e)
		}
	}
	w.restoreAll(ctx, locked)
	for _, e := range entries {
		if locks.has("container", e.ContainerID) {
			w.removeForeignLock(e)
		}
	}
	locks.unlock()
	w.finish(ctx)
	return busy
}

// removeForeignLock removes the lock file of a container that another runtime attached, which does not
// remove it.
func (r *Runner) removeForeignLock(e *snapshot) {
	if e.BootID == "" {
		r.Cache.removeLock(e.ContainerID)
	}
}

// restoreLocked waits for the lock of one attachment, until waiting ends, and restores it.
func (w *restoring) restoreLocked(ctx, waiting context.Context, e *snapshot) {
	unlock, err := w.lock(waiting, e.Attachment())
	if err != nil {
		var locked *lockedError
		switch {
		case ctx.Err() != nil:
		case errors.As(err, &locked):
			w.done(&Restored{snapshot: e, Busy: true, Unchecked: locked.busy})
		default:
			w.done(&Restored{snapshot: e, Errs: []error{err}})
		}
		return
	}
	w.restoreAll(ctx, []*snapshot{e})
	w.removeForeignLock(e)
	unlock()
	w.finish(ctx)
}

// finish runs CHECK of the attachments that were restored without an error. Each is locked by itself: an
// external plugin that hangs delays no verb of another container. CHECK uses nothing that was read
// before the restore.
func (w *restoring) finish(ctx context.Context) {
	w.Session.Forget()
	defer w.Session.Forget()
	all := w.restored
	w.restored = nil
	check := func(r *Runner, i int) {
		if len(all[i].Errs) == 0 {
			r.checkRestored(ctx, all[i])
		}
	}
	w.ForEach(ctx, len(all), func(i int) string { return all[i].ContainerID }, check, func(i int) { w.done(all[i]) })
}

// checkRestored runs CHECK of one attachment, unless another verb has locked or changed it.
func (r *Runner) checkRestored(ctx context.Context, res *Restored) {
	if res.Unchecked = res.list.Unchecked(); res.Unchecked != "" {
		return
	}
	network := r.Cache.tryLock("network", res.NetworkName, unix.LOCK_SH)
	if network != nil {
		defer network()
	}
	container := r.Cache.tryLock("container", res.ContainerID, unix.LOCK_EX)
	if container != nil {
		defer container()
		defer r.removeForeignLock(res.snapshot)
	}
	if network == nil || container == nil || !res.Written().Equal(res.written) {
		res.Unchecked = "another verb is at work"
		return
	}
	t := res.runtimeConf()
	defer r.begin(&t, res.Attachment())()
	_ = t.openNetNS() // the plugins report the error
	res.failed(r.checkAll(ctx, res.list, t, res.prev))
}

// failed adds an error; nil is ignored.
func (res *Restored) failed(err error) {
	if err != nil {
		res.Errs = append(res.Errs, err)
	}
}

// runtimeConf returns the arguments of the attachment's ADD.
func (e *Entry) runtimeConf() RuntimeConf {
	return RuntimeConf{ContainerID: e.ContainerID, IfName: e.IfName, NetNS: e.NetNSPath(), Args: e.Args, Capabilities: e.CapabilityArgs}
}

// restoreAll restores locked attachments, except those deleted meanwhile. The oldest of each network
// comes first, since it makes what they share; the others run several at a time. Their changes are made
// in the order of the attachments, which makes the rule set the same each time.
func (w *restoring) restoreAll(ctx context.Context, locked []*snapshot) {
	var all []*Restored
	for _, e := range locked {
		if !e.Written().Equal(e.written) {
			current, err := w.Cache.Lookup(e.Attachment())
			if err != nil || !current.Attached() {
				continue
			}
			e.Entry, e.written = current, current.Written()
		}
		res := &Restored{snapshot: e}
		all = append(all, res)
	}
	var later []int
	seen := map[string]bool{}
	for i, res := range all {
		switch {
		case seen[res.NetworkName]:
			later = append(later, i)
		case ctx.Err() == nil:
			seen[res.NetworkName] = true
			w.restoreOne(ctx, i, res)
		}
	}
	w.ForEach(ctx, len(later), func(i int) string { return all[later[i]].ContainerID },
		func(r *Runner, i int) { r.restoreOne(ctx, later[i], all[later[i]]) }, nil)
	w.restored = slices.DeleteFunc(all, func(res *Restored) bool { return !res.begun })
	w.Session.Commit(ctx)
}

// did adds what was made or set.
func (res *Restored) did(text string) { res.Did = append(res.Did, text) }

// restoreOne restores an attachment, up to what its plugins leave.
func (r *Runner) restoreOne(ctx context.Context, order int, res *Restored) {
	res.begun = true
	t := res.runtimeConf()
	of := r.Session.For(order, res.Attachment().Key(), res.did)
	defer of.Close()
	t.session = of.Leaving(res.failed)
	l, prev, err := res.recorded(r.Session)
	if err != nil {
		res.failed(err)
		return
	}
	res.list, res.prev = l, prev
	for i := range l.Plugins {
		p := &l.Plugins[i]
		builtIn, err := r.Invoker.Find(p.Type)
		switch {
		case err != nil:
		case builtIn == nil:
			res.External = append(res.External, p.Type)
		case builtIn.Restore != nil:
			err = r.restorePlugin(ctx, l, p, t, prev, res.did)
		}
		res.failed(err)
		if errors.Is(err, spec.ErrNeedsAdd) { // then the other plugins would change a missing or foreign interface
			return
		}
	}
}

func (r *Runner) restorePlugin(ctx context.Context, l *List, p *Plugin, t RuntimeConf, prev *spec.Result, did func(string)) error {
	req, err := r.request(spec.Restore, l, p, t, nil)
	if err != nil {
		return failed(spec.Restore, l, p, err)
	}
	req.Did = func(format string, args ...any) { did(fmt.Sprintf(format, args...)) }
	_, err = r.invoke(ctx, l, p, req, prev)
	return err
}

// recorded returns the list and the result of an attachment.
func (e *Entry) recorded(s *session.Session) (l *List, prev *spec.Result, err error) {
	if l, err = e.ListOnce(s); err != nil {
		return nil, nil, fmt.Errorf("cached configuration: %w", err)
	}
	v, err := l.version()
	if err != nil {
		return nil, nil, err
	}
	if prev, err = e.result(v); err == nil && prev == nil {
		err = errors.New("the entry has none")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cached result: %w", err)
	}
	if e.NetNSPath() == "" {
		return nil, nil, errors.New("its network namespace is not recorded")
	}
	return l, prev, nil
}
