package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// batchSize returns how many attachments are restored or deleted, and so locked, at once. Each lock is
// an open file; half of the limit remains for other files.
func batchSize() int {
	const most = 1000
	var open unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return 100
	}
	return int(max(1, min(most, open.Cur/2)))
}

// A deleting is the DEL of many attachments in progress. It continues after failures.
type deleting struct {
	*Runner
	list *List // used if that of an entry cannot be read
	// owned says that the caller has the network's lock, and has read the entries under it.
	owned   bool
	all     int
	deleted []spec.Attachment
	errs    []error
}

// An AttachmentError is an error about one of several attachments.
type AttachmentError struct {
	spec.Attachment
	Title string // for people
	Err   error
}

// Error returns the title of the attachment and its error.
func (e *AttachmentError) Error() string { return fmt.Sprintf("%s: %v", e.Title, e.Err) }

// Unwrap returns Err.
func (e *AttachmentError) Unwrap() error { return e.Err }

// A deletion is one DEL of a [deleting].
type deletion struct {
	*Entry
	locked  bool // by this process
	batched bool // see begin
	kept    bool // not deleted here: it is alive, or another process has deleted it
	errs    []error
}

// fail adds an error; nil is ignored.
func (d *deletion) fail(err error) {
	if err != nil {
		d.errs = append(d.errs, err)
	}
}

// run deletes the entries: together if their plugins are built in. It deletes entries that another
// verb has locked, and those of interrupted ADDs, last and one after another. It ends early when
// the context ends, and returns that error once.
func (w *deleting) run(ctx context.Context, entries []*Entry) ([]spec.Attachment, error) {
	w.all = len(entries)
	w.progress(0, w.all)
	for _, e := range w.parts(ctx, entries) {
		if ctx.Err() != nil {
			break
		}
		w.finished(ctx, e, w.one(ctx, e))
	}
	if ctx.Err() != nil {
		w.errs = append(w.errs, context.Cause(ctx))
	}
	return w.deleted, errors.Join(w.errs...)
}

// parts deletes those of the entries that can be deleted together, and returns the others.
func (w *deleting) parts(ctx context.Context, entries []*Entry) (single []*Entry) {
	for part := range slices.Chunk(entries, batchSize()) {
		single = append(single, w.part(ctx, part)...)
	}
	return single
}

// finished records the end of one DEL. It ignores the error of an ended context, which run returns once.
func (w *deleting) finished(ctx context.Context, e *Entry, err error) {
	a := e.Attachment()
	switch {
	case err == nil:
		w.deleted = append(w.deleted, a)
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return
	default:
		w.errs = append(w.errs, &AttachmentError{a, e.Title(), err})
	}
	w.progress(len(w.deleted)+len(w.errs), w.all)
}

// one deletes a single attachment.
func (w *deleting) one(ctx context.Context, e *Entry) error {
	if w.owned {
		return w.deleteOne(ctx, w.list, e)
	}
	return w.deleteStale(ctx, e.Attachment())
}

// part deletes some attachments together and returns those that are to be deleted one by one.
func (w *deleting) part(ctx context.Context, entries []*Entry) (single []*Entry) {
	locks := w.Cache.locks()
	defer locks.unlock()
	s := session.New()
	if len(entries) > 1 {
		s = session.NewForMany()
	}
	defer s.Close()
	together := *w.Runner
	together.Session = s
	var all, begun []*deletion
	for _, e := range entries {
		locked := (w.owned || locks.try("network", e.NetworkName, unix.LOCK_SH)) && locks.try("container", e.ContainerID, unix.LOCK_EX)
		all = append(all, &deletion{Entry: e, locked: locked})
	}
	begin := func(r *Runner, i int) { all[i].batched = all[i].locked && w.begin(ctx, r, i, all[i]) }
	together.ForEach(ctx, len(all), func(i int) string { return all[i].ContainerID }, begin, func(i int) {
		if all[i].batched {
			begun = append(begun, all[i])
		} else {
			single = append(single, entries[i])
		}
	})
	if ctx.Err() != nil {
		return nil
	}
	s.Commit(ctx)
	exists := w.Cache.listed()
	for _, d := range begun {
		err := errors.Join(d.errs...)
		if err == nil && !d.kept {
			err = w.Cache.remove(d.Attachment(), d.Entry, exists)
		}
		if err == nil {
			w.Cache.removeLock(d.ContainerID)
		}
		w.finished(ctx, d.Entry, err)
	}
	return single
}

// begin runs DEL of the plugins of an attachment, which leave what is made together. It returns
// false, and has changed nothing, if the attachment has to be deleted by itself: after an interrupted
// ADD, where all errors decide how to continue, and with a plugin of another program.
func (w *deleting) begin(ctx context.Context, r *Runner, order int, d *deletion) (batched bool) {
	if !w.owned { // another process may have deleted it, or added it again
		current, err := r.Cache.Lookup(d.Attachment())
		if err != nil || current.Live() {
			d.kept = true
			d.fail(ignore(err, os.ErrNotExist))
			return true
		}
		d.Entry = current
	}
	of := r.Session.For(order, d.Attachment().Key(), nil)
	defer of.Close()
	if l, err := d.ListOnce(of); d.Interrupted() || err != nil || !r.canLeave(l) {
		return false
	}
	l, t := r.recallStale(of, w.list, d.Entry)
	v, err := l.version()
	if err != nil {
		return false
	}
	r.delEach(ctx, l, t, r.prevOf(d.Entry, v), true, true, d.fail)
	return true
}

// delEach runs DEL for the plugins of the list in reverse. With leave they leave their changes for the session's Commit.
// Without keepGoing it stops at the first error.
func (r *Runner) delEach(ctx context.Context, l *List, t RuntimeConf, prev *spec.Result, leave, keepGoing bool, fail func(error)) {
	for i := len(l.Plugins) - 1; i >= 0; i-- {
		p, own := &l.Plugins[i], t
		if leave {
			own.session = t.session.Leaving(func(err error) { fail(failed(spec.Del, l, p, err)) })
		}
		switch _, err := r.run(ctx, spec.Del, l, p, own, prev); {
		case err == nil:
		case keepGoing || i == 0:
			fail(err)
		default:
			fail(fmt.Errorf("%w (the plugins before it have not been run: --keep-going runs them)", err))
			return
		}
	}
}

// canLeave reports whether the plugins of a list may leave changes for the end: all of them, and their IPAM plugins, are
// of this program.
func (r *Runner) canLeave(l *List) bool {
	return !slices.ContainsFunc(l.Plugins, func(p Plugin) bool { return !r.builtIn(&p) })
}
