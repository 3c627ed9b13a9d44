package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// recall fills in the arguments of the ADD that the caller omits, and returns the list of the ADD.
//
// The specification requires the same arguments for DEL as for ADD. libcni's callers must store
// them themselves, and cnitool's DEL has none. The list of the ADD is needed too: a plugin that was
// removed from the configuration since then must still release its resources.
//
// If the path of t is that of the ADD's namespace, its session has that open.
func (r *Runner) recall(l *List, t RuntimeConf, e *Entry) (*List, RuntimeConf) {
	if e == nil {
		return l, t
	}
	if t.Args == nil {
		t.Args = e.Args
	}
	if t.Capabilities == nil {
		t.Capabilities = e.CapabilityArgs
	}
	path := e.NetNSPath()
	if t.NetNS == "" {
		t.NetNS = path
	}
	// The path may lead to another namespace by now; the attachment's is gone then, and
	// nothing must be changed in the new one.
	if t.NetNS == path {
		ns, replaced := e.open()
		if replaced {
			t.NetNS = ""
		}
		t.session.Own(ns)
	}
	// The usual case, and the fast one: the configuration is unchanged.
	if bytes.Equal(l.doc, e.Config) {
		return l, t
	}
	old, err := e.ListOnce(t.session)
	if err != nil {
		r.Warn("%s: cached configuration: %v", e.Title(), err)
		return l, t
	}
	if len(l.Plugins) > 0 && !l.same(old) {
		r.Warn("the configuration of network %s has changed since ADD: that of the ADD is used", l.Name)
	}
	return old, t
}

// same reports whether two lists have the same plugins, in whatever form: libcni caches a
// configuration of one plugin with its members sorted, and without the last digits of large numbers.
func (l *List) same(o *List) bool {
	return l.Name == o.Name && l.CNIVersion == o.CNIVersion && l.DisableCheck == o.DisableCheck && l.DisableGC == o.DisableGC &&
		slices.EqualFunc(l.Plugins, o.Plugins, func(a, b Plugin) bool {
			var inA, inB any
			return bytes.Equal(a.conf, b.conf) ||
				json.Unmarshal(a.conf, &inA) == nil && json.Unmarshal(b.conf, &inB) == nil && reflect.DeepEqual(inA, inB)
		})
}

// release runs DEL with the list of the ADD. An ADD may have failed because of that list, since a
// plugin is missing or rejects its configuration: then release tries the current list. If that
// fails too, and all errors are rejections, the attachment counts as released: a plugin that
// rejects DEL has done nothing at ADD. This does not apply to a missing plugin, which may be on
// another path, nor after a successful ADD.
func (r *Runner) release(ctx context.Context, l, current *List, t RuntimeConf, e *Entry, keepGoing bool) error {
	if e == nil || !e.Interrupted() {
		return errors.Join(r.delRecorded(ctx, l, t, e, keepGoing)...)
	}
	errs := r.delRecorded(ctx, l, t, e, true) // as the ADD itself would have done
	if len(errs) == 0 || !all(errs, func(err error) bool { return rejected(err) || missing(err) }) {
		return errors.Join(errs...)
	}
	if len(current.Plugins) > 0 && !bytes.Equal(current.doc, e.Config) {
		r.Warn("%s: the present configuration is used after all, as the ADD failed: %v", e.Title(), errors.Join(errs...))
		again := r.delRecorded(ctx, current, t, e, true)
		if len(again) == 0 {
			return nil
		}
		errs = append(errs, again...)
	}
	if !all(errs, rejected) {
		return errors.Join(errs...)
	}
	r.Warn("%s: the ADD failed, and there is nothing to delete: %v", e.Title(), errors.Join(errs...))
	return nil
}

// all reports whether each error matches.
func all(errs []error, match func(error) bool) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return !match(err) })
}

// rejected reports whether a plugin has rejected its configuration or its version.
func rejected(err error) bool { return hasCode(err, spec.CodeConfig, spec.CodeVersion) }

// missing reports whether a plugin is not found.
func missing(err error) bool {
	return hasCode(err, spec.CodePlugin, spec.CodeEnv) && errors.Is(err, os.ErrNotExist)
}

// hasCode reports whether an error has one of the codes. Joined errors of a plugin have none, since
// each may be about something else.
func hasCode(err error, codes ...int) bool {
	var joined interface{ Unwrap() []error }
	return !errors.As(err, &joined) && slices.Contains(codes, spec.AsError(err).Code)
}
