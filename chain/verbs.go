package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// Del runs DEL for all plugins in reverse, with the arguments and the result of the ADD, and
// removes the attachment from the cache.
//
// A missing entry is not an error: plugins release by the names alone. The list may have no plugins
// if the cache has the attachment. Del stops at the first failure, as the specification says,
// unless KeepGoing is set; after any failure the entry stays.
func (r *Runner) Del(ctx context.Context, l *List, t RuntimeConf) error {
	a := t.On(l)
	if err := checkNames(a); err != nil {
		return err
	}
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	e, err := r.Cache.Lookup(a)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer r.begin(&t, a)()
	current := l
	l, t = r.recall(l, t, e)
	if len(l.Plugins) == 0 {
		return fmt.Errorf("network %s has no configuration and %s is not known: %w", l.Name, t.title(l, e), os.ErrNotExist)
	}
	// A path without a namespace is not an error of DEL; the host's own namespace is one.
	if err := t.openNetNS(); errors.Is(err, spec.ErrOwnNS) {
		return err
	}
	if err = r.release(ctx, l, current, t, e, r.KeepGoing); err == nil {
		err = r.Cache.Remove(a)
	}
	if err == nil {
		r.Cache.removeLock(a.ContainerID)
	}
	return err
}

// delEntry deletes the attachment of an entry and continues after failures. It is for leftovers and
// stale attachments, for which the caller has no arguments. The list is used if that of the entry
// cannot be read.
func (r *Runner) delEntry(ctx context.Context, l *List, e *Entry) error {
	current := l
	var at RuntimeConf
	defer r.begin(&at, e.Attachment())()
	l, t := r.recallStale(at.session, l, e)
	if len(l.Plugins) == 0 {
		return fmt.Errorf("%s: no configuration: %w", e.Title(), os.ErrNotExist)
	}
	if err := r.release(ctx, l, current, t, e, true); err != nil {
		return err
	}
	return r.Cache.Remove(e.Attachment())
}

// recallStale is recall for a stale attachment.
func (r *Runner) recallStale(s *session.Session, l *List, e *Entry) (*List, RuntimeConf) {
	l, t := r.recall(l, RuntimeConf{ContainerID: e.ContainerID, IfName: e.IfName, session: s}, e)
	if ns := s.NS(t.NetNS); ns != nil && isOwn(ns) {
		t.NetNS = "" // an old /proc/PID path that has become the host's
	}
	return l, t
}

// prevOf returns the cached result for DEL, which every plugin receives from 0.4.0 on; nil if it cannot
// be read. e is nil for an ADD that was never finished.
func (r *Runner) prevOf(e *Entry, v spec.Version) *spec.Result {
	if e == nil || !v.AtLeast(spec.V040) {
		return nil
	}
	prev, err := e.result(v)
	if err != nil {
		r.Warn("%s: cached result: %v", e.Title(), err)
	}
	return prev
}

// delRecorded is delAll with the result of the entry; e is nil if there is none.
func (r *Runner) delRecorded(ctx context.Context, l *List, t RuntimeConf, e *Entry, keepGoing bool) []error {
	v, err := l.version()
	if err != nil {
		return []error{err}
	}
	return r.delAll(ctx, l, t, r.prevOf(e, v), keepGoing)
}

// delAll runs DEL for the plugins of the list in reverse and returns their errors. prev is nil for an ADD
// that was never finished. Without keepGoing it stops at the first error.
func (r *Runner) delAll(ctx context.Context, l *List, t RuntimeConf, prev *spec.Result, keepGoing bool) (errs []error) {
	t.session = t.session.Apart()
	r.delEach(ctx, l, t, prev, r.canLeave(l), keepGoing, func(err error) { errs = append(errs, err) })
	t.session.Commit(ctx)
	return errs
}

// Check runs CHECK for all plugins in order, each with the cached result, and stops at the first
// error. An attachment that was never added, or was added on an earlier boot, is unknown (code 3).
//
// Without an entry, libcni runs the plugins without a prevResult, and each fails with its own
// error.
func (r *Runner) Check(ctx context.Context, l *List, t RuntimeConf) error {
	l, t, e, unlock, err := r.lockAndRecall(ctx, l, t, spec.V040, spec.Check)
	if err != nil {
		return err
	}
	defer unlock()
	if l.DisableCheck || l.unchecked() {
		return nil
	}
	if err := e.finished(t.title(l, e)); err != nil {
		return err
	}
	switch {
	case t.NetNS == "" && e.NetNSPath() == "":
		return spec.Errorf(spec.CodeNetNS, "the namespace of %s is not on record: name it", e.Title())
	case t.NetNS == "":
		return spec.Errorf(spec.CodeNetNS, "the network namespace of %s is gone: %s is another one now", e.Title(), e.NetNSPath())
	}
	if err := t.openNetNS(); err != nil {
		return err
	}
	v, _ := l.version() // lockAndRecall has checked it
	prev, err := e.result(v)
	if err != nil {
		return fmt.Errorf("cached result of %s: %w", e.Title(), err)
	}
	return r.checkAll(ctx, l, t, prev)
}

// finished returns an error of code 3 for an attachment whose ADD has not ended in this boot; e is nil
// if the cache does not have it.
func (e *Entry) finished(title string) error {
	switch {
	case e == nil:
		return spec.Errorf(spec.CodeUnknown, "%s is not known: it was never added, or has been deleted", title)
	case e.Interrupted():
		return spec.Errorf(spec.CodeUnknown, "the ADD of %s was interrupted: run DEL, then ADD", title)
	case !e.SameBoot():
		return spec.Errorf(spec.CodeUnknown, "%s was added before the host was started: run DEL, then ADD", title)
	}
	return nil
}

// checkAll runs CHECK for all plugins in order, up to the first error. The error of a plugin without
// RESTORE matches [spec.ErrNeedsAdd] if it is about the attachment.
func (r *Runner) checkAll(ctx context.Context, l *List, t RuntimeConf, prev *spec.Result) error {
	for i := range l.Plugins {
		p := &l.Plugins[i]
		_, err := r.run(ctx, spec.Check, l, p, t, prev)
		if err == nil {
			continue
		}
		builtIn, missing := r.Invoker.Find(p.Type)
		if missing == nil && (builtIn == nil || builtIn.Restore == nil) && spec.AsError(err).Code > spec.CodeLimited {
			err = spec.NeedsAdd(err)
		}
		return err
	}
	return nil
}

// Unchecked returns the reason why CHECK of an attachment of the list is not run, or does nothing;
// empty: it is run.
func (l *List) Unchecked() string {
	v, err := l.version()
	switch {
	case err != nil: // which CHECK reports
	case !v.AtLeast(spec.V040):
		return fmt.Sprintf("cniVersion %s has no CHECK", v)
	case l.DisableCheck:
		return "disableCheck is set"
	case l.unchecked():
		return "args.cni.disable-check is set"
	}
	return ""
}

// Get runs GET for all plugins in order, the first with the cached result and each other one with the
// result of the previous plugin. It does not change the cache. A plugin without GET, which only a draft
// of 0.4.0 had, does not change the result. The error has code 3 if neither the cache nor a plugin knows
// the attachment, or if its network namespace does not exist.
func (r *Runner) Get(ctx context.Context, l *List, t RuntimeConf) (*spec.Result, error) {
	l, t, e, unlock, err := r.lockAndRecall(ctx, l, t, spec.V040, spec.Get)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(t.NetNS); t.NetNS == "" || errors.Is(err, os.ErrNotExist) {
		return nil, spec.Errorf(spec.CodeUnknown, "%s is not known: there is no network namespace %q", t.title(l, e), t.NetNS)
	}
	if err := t.openNetNS(); err != nil {
		return nil, err
	}
	v, _ := l.version() // lockAndRecall has checked it
	var res *spec.Result
	if e != nil {
		if res, err = e.result(v); err != nil {
			return nil, fmt.Errorf("cached result of %s: %w", e.Title(), err)
		}
	}
	return r.getAll(ctx, l, t, res)
}

// getAll runs GET for all plugins in order; res is the result of the ADD, nil if it is not known.
func (r *Runner) getAll(ctx context.Context, l *List, t RuntimeConf, res *spec.Result) (*spec.Result, error) {
	for i := range l.Plugins {
		next, err := r.run(ctx, spec.Get, l, &l.Plugins[i], t, res)
		var answer *spec.Error
		switch {
		case err == nil && next != nil:
			res = next
		// This is the answer of the reference's plugins, which have no GET.
		case err == nil, res != nil && errors.As(err, &answer) && strings.Contains(answer.Msg, "unknown CNI_COMMAND"):
		default:
			return nil, err
		}
	}
	if res == nil {
		return nil, spec.Errorf(spec.CodeUnknown, "%s is not known", t.title(l, nil))
	}
	return res, nil
}

// lockAndRecall locks an attachment and recalls its arguments; the entry is nil if there is none. The
// caller calls the returned function, which unlocks; after an error nothing is locked.
func (r *Runner) lockAndRecall(ctx context.Context, l *List, t RuntimeConf, since spec.Version, verb spec.Verb) (*List, RuntimeConf, *Entry, func(), error) {
	a := t.On(l)
	if err := checkNames(a); err != nil {
		return nil, t, nil, nil, err
	}
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return nil, t, nil, nil, err
	}
	e, err := r.Cache.Lookup(a)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		unlock()
		return nil, t, nil, nil, err
	}
	end := r.begin(&t, a)
	l, t = r.recall(l, t, e)
	v, err := l.version()
	if err == nil && !v.AtLeast(since) {
		err = spec.Errorf(spec.CodeVersion, "configuration version %q does not support the %s command", l.CNIVersion, verb)
	}
	done := func() { end(); unlock() }
	if err != nil {
		done()
		return nil, t, nil, nil, err
	}
	return l, t, e, done, nil
}

// unchecked reports whether args.cni.disable-check of a plugin disables CHECK for the attachment. The key
// is from the configuration schema, and is for runtimes.
func (l *List) unchecked() bool {
	for _, p := range l.Plugins {
		if p.disableCheck {
			return true
		}
	}
	return false
}

// Status runs STATUS for all plugins in order, up to the first error. Versions before 1.1.0 have no
// STATUS: then it runs that of the newest version, of the plugins that are built in. It takes no lock,
// since runtimes call it every few seconds.
func (r *Runner) Status(ctx context.Context, l *List) error {
	v, err := l.version()
	if err != nil {
		return err
	}
	asked := *l
	if !v.AtLeast(spec.V110) {
		asked.CNIVersion = spec.Newest.String()
		asked.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p Plugin) bool { return !r.builtIn(&p) })
	}
	return r.statusAll(ctx, &asked)
}

// statusAll runs STATUS for all plugins in order, up to the first error.
func (r *Runner) statusAll(ctx context.Context, l *List) error {
	var t RuntimeConf
	defer r.begin(&t, spec.Attachment{})()
	for i := range l.Plugins {
		if _, err := r.run(ctx, spec.Status, l, &l.Plugins[i], t, nil); err != nil {
			return err
		}
	}
	return nil
}

// builtIn reports whether a plugin, and its IPAM plugin, are built in.
func (r *Runner) builtIn(p *Plugin) bool {
	for _, name := range []string{p.Type, p.IPAM} {
		if builtIn, err := r.Invoker.Find(name); name != "" && (err != nil || builtIn == nil) {
			return false
		}
	}
	return true
}
