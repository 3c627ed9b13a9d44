package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// A Runner runs the plugins of a list for a verb. Invoker, Cache and Warn are required; the
// zero values of all other fields are usable.
//
// It keeps no state between calls: the cache has everything that later verbs need. Each verb takes
// locks, so several processes and goroutines may run verbs concurrently.
type Runner struct {
	Invoker spec.Invoker
	Cache   *Cache
	Path    string // CNI_PATH, for the plugins
	// Warn prints one line, a warning.
	Warn func(format string, args ...any)
	// Progress is called with the number of stale attachments that GC has deleted; nil: not called.
	Progress func(done, all int)
	// KeepGoing makes DEL run the remaining plugins after a failure.
	KeepGoing bool
	// Retries is how often an ADD that failed with code 11 is repeated, after its DEL.
	Retries int
	// UndoTimeout bounds the DEL after a failed ADD, which also runs when the ADD's own context has
	// ended; 0: 30 s.
	UndoTimeout time.Duration

	// Session is that of several verbs, whose caller closes it; nil: each verb has its own.
	Session *session.Session

	call *spec.Call // of the plugin that runs a folded list; nil: the calls are made from a RuntimeConf
}

const (
	defaultUndo = 30 * time.Second
	retryPause  = 500 * time.Millisecond // doubled each time
)

// A RuntimeConf has the attachment of a verb and the arguments for the plugins, as libcni's type of this
// name. Each verb checks NetNS, and the plugins open it.
type RuntimeConf struct {
	ContainerID, IfName string
	NetNS               string           // path; empty in DEL, CHECK and GET: as at the ADD
	NetNSOverride       bool             // the plugin's own namespace is allowed
	session             *session.Session // during a verb
	// Args are the pairs of CNI_ARGS, Capabilities the values for
	// runtimeConfig; nil in DEL, CHECK and GET: as at the ADD.
	Args         [][2]string
	Capabilities map[string]json.RawMessage
}

// On returns the attachment to a network. Its names are not checked yet.
func (t *RuntimeConf) On(l *List) spec.Attachment {
	return spec.Attachment{Network: l.Name, ContainerID: t.ContainerID, IfName: t.IfName}
}

// CNIArgs returns the pairs as CNI_ARGS, in their order. It does not escape values: CNI_ARGS has no
// syntax for that.
func (t *RuntimeConf) CNIArgs() string {
	pairs := make([]string, len(t.Args))
	for i, p := range t.Args {
		pairs[i] = p[0] + "=" + p[1]
	}
	return strings.Join(pairs, ";")
}

// An AddResult has the last result of an ADD.
type AddResult struct {
	*spec.Result
	Doc []byte // as it was cached, in the version of the list
}

// Add runs ADD for all plugins in order and caches the last result. If one fails, or the result
// cannot be stored, it runs DEL in reverse for the plugins that have changed something. The error
// is then the first one, with those of the DEL in its details.
//
// The error has code 100 if the attachment exists; leftovers of an interrupted ADD or of a deleted
// namespace are deleted first.
//
// libcni runs no DEL, allows a second ADD and takes no lock: it leaves these to its caller.
func (r *Runner) Add(ctx context.Context, l *List, t RuntimeConf) (*AddResult, error) {
	a := t.On(l)
	defer r.begin(&t, a)()
	if err := errors.Join(checkNames(a), t.openNetNS()); err != nil {
		return nil, err
	}
	v, err := l.Supported()
	if err != nil {
		return nil, err
	}
	r = r.Once()
	reqs, err := r.addRequests(l, t)
	if err != nil {
		return nil, err
	}
	spec.WarnUnknownArgs(reqs...)
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.replaceStale(ctx, l, a); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		res, err := r.addOnce(ctx, l, t, v, reqs)
		var e *spec.Error
		if err == nil {
			return res, nil
		}
		if try >= r.Retries || !errors.As(err, &e) || e.Code != spec.CodeTryAgain {
			r.Cache.removeLock(t.ContainerID)
			return nil, err
		}
		r.Warn("%v; trying again", err)
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retryPause << min(try, 6)):
		}
	}
}

// Once returns r for one verb, which searches each plugin once.
func (r *Runner) Once() *Runner {
	verb := *r
	if i, ok := r.Invoker.(interface{ Once() spec.Invoker }); ok {
		verb.Invoker = i.Once()
	}
	return &verb
}

// replaceStale returns an error for an attachment that is alive and deletes a stale one. If the
// deletion fails, it warns and the ADD continues, unless ctx has ended.
func (r *Runner) replaceStale(ctx context.Context, l *List, a spec.Attachment) error {
	old, err := r.Cache.Lookup(a)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.Live() && !old.Interrupted() {
		return &spec.Error{
			Code: spec.CodeBusy, Err: os.ErrExist,
			Msg: fmt.Sprintf("%s of container %s is attached to network %s already (namespace %s): run DEL first", a.IfName, old.Name(), a.Network, old.NetNSPath()),
		}
	}
	if old.ownsNothing() {
		return nil // this ADD will fail in the same way
	}
	r.Warn("%s: deleting what an earlier ADD left", old.Title())
	err = r.delEntry(ctx, l, old)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case err != nil:
		r.Warn("%s: leftovers of an earlier ADD: %v", old.Title(), err)
	}
	return nil
}

// addOnce is one try: intent, plugins, result; after an error it undoes them.
func (r *Runner) addOnce(ctx context.Context, l *List, t RuntimeConf, v spec.Version, reqs []*spec.Request) (*AddResult, error) {
	e, err := t.entry(l)
	if err != nil {
		return nil, err
	}
	defer interrupt.Begin()()
	if err := r.Cache.Begin(e); err != nil {
		return nil, err
	}
	res, done, err := r.addAll(ctx, l, t, reqs, e.There)
	var doc []byte
	if err == nil {
		doc, err = res.EncodeFor(v, t.IfName)
	}
	if err == nil {
		err = r.Cache.Finish(e, doc)
	}
	if err != nil {
		return nil, r.undo(ctx, l, done, t, e, err)
	}
	return &AddResult{res, doc}, nil
}

// entry returns the entry of the attachment, without a result.
func (t *RuntimeConf) entry(l *List) (*Entry, error) {
	config, err := l.Effective()
	if err != nil {
		return nil, err
	}
	e := &Entry{
		ContainerID: t.ContainerID, Config: config, IfName: t.IfName, NetworkName: l.Name, NetNS: t.NetNS,
		Args: t.Args, CapabilityArgs: t.Capabilities, BootID: state.BootID(),
	}
	e.identify(*t)
	return e, nil
}

// addAll runs the plugins in order, each with the result of the previous one, and returns the last
// result. After an error, done is the number of plugins to undo. What the plugins leave is done at the end: then nothing
// of that is to be undone if one of them fails.
//
// A plugin that fails may have rejected an existing attachment, which its DEL would delete: it
// counts only if [spec.Request.NeedsDel] says so. An external plugin that is the first of the list
// does not count if the interface existed before.
func (r *Runner) addAll(ctx context.Context, l *List, t RuntimeConf, reqs []*spec.Request, existed bool) (res *spec.Result, done int, err error) {
	mac, setter := "", 0
	s := t.session.Apart()
	leave := r.canLeave(l)
	var late []error
	for i := range l.Plugins {
		p := &l.Plugins[i]
		if leave {
			reqs[i].Call.Session = s.Leaving(func(err error) { late = append(late, failed(spec.Add, l, p, err)) })
		}
		if i == 0 && existed {
			existed = r.isExternal(p.Type)
		}
		res, err = r.invoke(ctx, l, p, reqs[i], res)
		if err == nil && res == nil {
			s.Discard()
			err = spec.Errorf(spec.CodePlugin, "plugin type=%q name=%q failed (add): it gave no result", p.Type, l.Name)
			return nil, i + 1, err
		}
		if err != nil {
			s.Discard()
			if reqs[i].NeedsDel(p.Type, err) && !(i == 0 && existed) {
				i++
			}
			return nil, i, err
		}
		if now := macOf(res, t.IfName); now != mac {
			if i > 0 && r.isExternal(p.Type) {
				setter = i
			}
			mac = now
		}
	}
	if s.Commit(ctx); len(late) > 0 {
		return nil, len(l.Plugins), late[0]
	}
	if setter > 0 {
		r.warnOfGuard(ctx, l, t, res, setter)
	}
	return res, len(l.Plugins), nil
}

// isExternal reports whether a plugin is found, and not built in.
func (r *Runner) isExternal(plugin string) bool {
	builtIn, missing := r.Invoker.Find(plugin)
	return missing == nil && builtIn == nil
}

// macOf returns the MAC address of the interface in the container; empty: the result does not have it.
func macOf(res *spec.Result, ifName string) string {
	for _, i := range res.Interfaces {
		if i.Name == ifName && i.Sandbox != "" {
			return i.MAC
		}
	}
	return ""
}

// warnOfGuard warns if an external plugin has set another MAC address than the only one from which a plugin before it lets the
// container send. Such plugins do not know of that.
func (r *Runner) warnOfGuard(ctx context.Context, l *List, t RuntimeConf, res *spec.Result, setter int) {
	mac := macOf(res, t.IfName)
	for i := range l.Plugins[:setter] {
		p := &l.Plugins[i]
		builtIn, err := r.Invoker.Find(p.Type)
		if err != nil || builtIn == nil || builtIn.Holds == nil {
			continue
		}
		req, err := r.request(spec.Check, l, p, t, nil)
		if err != nil {
			continue
		}
		req.Prev = res
		held, err := builtIn.Holds(ctx, req)
		if err != nil {
			continue
		}
		for _, h := range held {
			if guard, ok := h.Data.(spec.MACGuard); ok && guard.MAC != mac {
				r.Warn("plugin %s has set the MAC address of %s to %s, and %s lets %s send from %s alone: nothing that the container sends passes; let %[4]s set the address (\"mac\", or the capability mac)",
					l.Plugins[setter].Type, t.IfName, mac, p.Type, guard.Link, guard.MAC)
			}
		}
	}
}

// undo runs DEL of the first done plugins of the list after a failed ADD. If that fails as well,
// the intent stays for a later DEL or GC. There is no prevResult, since the list has no result. A
// plugin that rejects the version of the list has rejected it at ADD as well. The code is that of
// the cause.
//
// internal/undo does not fit here: external plugins need more than its time, and afterwards the
// cache entry is removed or stays.
func (r *Runner) undo(ctx context.Context, l *List, done int, t RuntimeConf, e *Entry, cause error) error {
	errs := r.delBegun(ctx, l, done, t)
	if all(errs, func(err error) bool { return hasCode(err, spec.CodeVersion) }) {
		err := r.Cache.Remove(e.Attachment())
		if err == nil {
			return cause
		}
		errs = []error{err}
	}
	return notUndone(cause, errs)
}

// delBegun runs DEL of the first done plugins of a list after a failed ADD.
func (r *Runner) delBegun(ctx context.Context, l *List, done int, t RuntimeConf) []error {
	ctx, cancel := interrupt.UndoContext(ctx, cmp.Or(r.UndoTimeout, defaultUndo))
	defer cancel()
	begun := *l
	begun.Plugins = l.Plugins[:done]
	return r.delAll(ctx, &begun, t, nil, true)
}

// notUndone returns the error of a failed ADD with those of its DEL.
func notUndone(cause error, errs []error) error {
	failure := spec.AsError(cause).WithDetails("cleanup is not complete, run DEL again")
	asAdd := strings.NewReplacer("failed (delete)", "failed (add)", " DEL ", " ADD ")
	for _, err := range errs {
		if asAdd.Replace(err.Error()) != cause.Error() { // a missing plugin is the same error twice
			failure = failure.WithDetails("%v", err)
		}
	}
	return failure
}

// lock takes the locks of ADD, DEL, CHECK and GET: the network's excludes GC, the container's
// excludes other verbs of the container. All verbs take them in this order, so there is no
// deadlock.
func (r *Runner) lock(ctx context.Context, a spec.Attachment) (unlock func(), err error) {
	network, err := r.Cache.lockNetwork(ctx, a.Network, false)
	if err != nil {
		return nil, err
	}
	container, err := r.Cache.lockContainer(ctx, a.ContainerID)
	if err != nil {
		network()
		return nil, err
	}
	return func() { container(); network() }, nil
}

// begin gives t the session of an attachment, until end.
func (r *Runner) begin(t *RuntimeConf, a spec.Attachment) (end func()) {
	verb := r.Session
	if verb == nil {
		verb = session.New()
	}
	of := verb.For(0, a.Key(), nil)
	t.session = of
	return func() {
		of.Close()
		if r.Session == nil {
			verb.Close()
		}
	}
}

// openNetNS opens the namespace for all plugins, unless it is open. It checks the namespace before any
// plugin runs: plugins check it as well, but only after the first ones have made changes. It rejects the
// process's own namespace, unless CNI_NETNS_OVERRIDE allows it. Errors have code 8.
func (t *RuntimeConf) openNetNS() error {
	ns := t.session.NS(t.NetNS)
	if ns == nil {
		var err error
		if ns, err = netns.Open(t.NetNS); err != nil {
			return spec.NetNSError(t.NetNS, err)
		}
		t.session.Own(ns)
	}
	if !t.NetNSOverride && isOwn(ns) {
		t.session.Own(nil)
		return spec.Errorf(spec.CodeNetNS, "%w: %q is this process's own", spec.ErrOwnNS, t.NetNS)
	}
	return nil
}
