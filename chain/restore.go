package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/once"
	"cnibox/spec"
)

// A Restored is the result of [Runner.Restore] for one attachment.
type Restored struct {
	*snapshot
	Did       []string // what was made or set, in this order, in a few words each
	Errs      []error  // of the plugins' RESTORE; if it had none, of CHECK
	Unchecked string   // why CHECK was not run; empty: it was
	External  []string // external plugins, which have no RESTORE

	list *List
	prev *spec.Result
}

// Restore makes the missing parts of the attachments that are alive, in the order of their ADDs,
// and runs CHECK of each. Attachments that another verb has locked come last. done is called with
// each one as soon as it is finished.
//
// DEL and GC handle attachments without a namespace, and interrupted ADDs. The error is the
// context's; done is not called with the remaining attachments then.
func (r *Runner) Restore(ctx context.Context, entries []*Entry, t Batch, done func(*Restored)) error {
	ctx, forget := once.WithCache(ctx)
	defer forget()
	w := &restoring{Runner: r.Once(), together: t, done: done}
	var busy []*snapshot
	for part := range slices.Chunk(alive(entries), batchSize()) {
		busy = append(busy, w.restoreUnlocked(ctx, part)...)
	}
	for _, e := range busy {
		w.restoreLocked(ctx, e)
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
func alive(entries []*Entry) (all []*snapshot) {
	for _, e := range entries {
		if e.Attached() {
			all = append(all, &snapshot{e, e.Written()})
		}
	}
	slices.SortStableFunc(all, func(a, b *snapshot) int { return a.written.Compare(b.written) })
	return all
}

// A restoring is a [Runner.Restore] in progress.
type restoring struct {
	*Runner
	together Batch
	done     func(*Restored)
	restored []*Restored // done has not been called with them
}

// restoreUnlocked restores some attachments and returns those that another verb has locked: it does not
// wait for a lock while it has others.
func (w *restoring) restoreUnlocked(ctx context.Context, entries []*snapshot) (busy []*snapshot) {
	locks := w.Cache.locks()
	for _, e := range entries {
		switch {
		case ctx.Err() != nil:
		case locks.try("network", e.NetworkName, unix.LOCK_SH) && locks.try("container", e.ContainerID, unix.LOCK_EX):
			w.restoreOne(ctx, e)
		default:
			busy = append(busy, e)
		}
	}
	w.together.Commit(ctx)
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

// restoreLocked waits for the lock of one attachment and restores it.
func (w *restoring) restoreLocked(ctx context.Context, e *snapshot) {
	unlock, err := w.lock(ctx, e.Attachment())
	if err != nil {
		if ctx.Err() == nil {
			w.done(&Restored{snapshot: e, Errs: []error{err}})
		}
		return
	}
	w.restoreOne(ctx, e)
	w.together.Commit(ctx)
	w.removeForeignLock(e)
	unlock()
	w.finish(ctx)
}

// finish runs CHECK of the attachments that were restored without an error. Each is locked by itself: an
// external plugin that hangs delays no verb of another container.
func (w *restoring) finish(ctx context.Context) {
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
	if end, err := t.openNetNS(r.host); err == nil { // else the plugins report it
		defer end()
	}
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

// restoreOne restores an attachment, unless it was deleted meanwhile.
func (w *restoring) restoreOne(ctx context.Context, e *snapshot) {
	if !e.Written().Equal(e.written) {
		current, err := w.Cache.Lookup(e.Attachment())
		if err != nil || !current.Attached() {
			return
		}
		e.Entry, e.written = current, current.Written()
	}
	res := &Restored{snapshot: e}
	w.restored = append(w.restored, res)
	l, prev, err := e.recorded(ctx)
	if err != nil {
		res.failed(err)
		return
	}
	res.list, res.prev = l, prev
	did := func(text string) { res.Did = append(res.Did, text) }
	ctx = w.together.Context(ctx, e.Attachment(), did, res.failed)
	for i := range l.Plugins {
		p := &l.Plugins[i]
		builtIn, err := w.Invoker.Find(p.Type)
		switch {
		case err != nil:
		case builtIn == nil:
			res.External = append(res.External, p.Type)
		case builtIn.Restore != nil:
			err = w.restorePlugin(ctx, l, p, e.runtimeConf(), prev, did)
		}
		res.failed(err)
		if errors.Is(err, spec.ErrNeedsAdd) { // then the other plugins would change a missing or foreign interface
			return
		}
	}
}

func (w *restoring) restorePlugin(ctx context.Context, l *List, p *Plugin, t RuntimeConf, prev *spec.Result, did func(string)) error {
	req, err := w.request(spec.Restore, l, p, t, nil)
	if err != nil {
		return failed(spec.Restore, l, p, err)
	}
	req.Did = func(format string, args ...any) { did(fmt.Sprintf(format, args...)) }
	_, err = w.invoke(ctx, l, p, req, prev)
	return err
}

// recorded returns the list and the result of an attachment.
func (e *Entry) recorded(ctx context.Context) (l *List, prev *spec.Result, err error) {
	if l, err = e.ListOnce(ctx); err != nil {
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
