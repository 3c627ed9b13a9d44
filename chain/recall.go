package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/spec"
)

// result returns the cached result, nil if there is none.
// v is the version of one that names none.
func (e *Entry) result(v spec.Version) (*spec.Result, error) {
	if doc := bytes.TrimSpace(e.Result); len(doc) == 0 || string(doc) == "null" {
		return nil, nil
	}
	return spec.ParseResult(e.Result, v)
}

// recall fills in what the ADD was told and the caller does not say otherwise,
// and the list that the ADD was run with.
//
// The specification has a DEL get what its ADD got. libcni's callers have to keep that
// themselves, and cnitool's DEL goes without. The list is that of the ADD as well: a
// plugin taken out of the configuration since then has still to release its part.
func (r *Runner) recall(l *List, t Target, e *Entry) (*List, Target) {
	if e == nil {
		return l, t
	}
	if t.Args == nil {
		t.Args = e.Args
	}
	if t.Capabilities == nil {
		t.Capabilities = e.CapabilityArgs
	}
	place := e.place()
	if t.NetNS == "" {
		t.NetNS = place
	}
	// A path may lead to somebody else's namespace by now; the attachment's is
	// gone then, and nothing must be changed in the new one.
	if t.NetNS == place && netnsID(place) != "" && !e.Live() {
		t.NetNS = ""
	}
	// The usual case, and the cheap one: nothing was edited.
	if bytes.Equal(l.doc, e.Config) {
		return l, t
	}
	old, err := e.List()
	if err != nil {
		r.Warn("%s: cached configuration: %v", e.Attachment(), err)
		return l, t
	}
	if now, err := l.Effective(); err == nil && len(l.Plugins) > 0 && !bytes.Equal(now, e.Config) {
		r.Warn("the configuration of network %s has changed since ADD: that of the ADD is used", l.Name)
	}
	return old, t
}

// release runs DEL with the list of the ADD. After an ADD that failed that list may be
// what it failed for, by a plugin that is missing or refuses its configuration: then the
// present one is tried. If that does no better, and all that is left are refusals, the
// attachment counts as released: what refuses at DEL has done nothing at ADD. A plugin that
// is missing may only be on another path, and an ADD that succeeded is never taken
// lightly.
func (r *Runner) release(ctx context.Context, l, now *List, t Target, e *Entry, keepGoing bool) error {
	if e == nil || !e.Interrupted() {
		return r.delAll(ctx, l, t, e, keepGoing)
	}
	err := r.delAll(ctx, l, t, e, true) // it is the rest of the ADD's own cleaning up
	if err == nil || !unusable(err, true) {
		return err
	}
	if len(now.Plugins) > 0 && !bytes.Equal(now.doc, e.Config) {
		r.Warn("%s: the present configuration is used after all, as the ADD failed: %v", e.Attachment(), err)
		again := r.delAll(ctx, now, t, e, true)
		if again == nil {
			return nil
		}
		err = errors.Join(err, again)
	}
	if !unusable(err, false) {
		return err
	}
	r.Warn("%s: the ADD failed, and there is nothing to delete: %v", e.Attachment(), err)
	return nil
}

// unusable reports whether all that an error is joined of are plugins that refuse their
// configuration or its version or, if that counts as well, are missing.
func unusable(err error, missing bool) bool {
	return only(err, func(e *spec.Error) bool {
		return e.Code == spec.CodeConfig || e.Code == spec.CodeVersion ||
			missing && (e.Code == spec.CodePlugin || e.Code == spec.CodeEnv) && errors.Is(e, os.ErrNotExist)
	})
}

// only reports whether each error that err is joined of is or wraps one that matches.
func only(err error, match func(*spec.Error) bool) bool {
	switch e := err.(type) {
	case nil:
		return false
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !only(err, match) {
				return false
			}
		}
		return true
	case *spec.Error:
		if match(e) {
			return true
		}
	}
	return only(errors.Unwrap(err), match)
}

// List reads the cached configuration: a list, or a single one as libcni's
// older interface keeps it.
// An entry whose list is of another network than itself is damaged.
func (e *Entry) List() (*List, error) {
	l, err := Parse(e.Config)
	if err != nil || len(l.Plugins) == 0 {
		single, serr := ParseSingle(e.Config)
		if serr != nil {
			return nil, errors.Join(err, serr)
		}
		l = single
	}
	if l.Name != e.NetworkName {
		return nil, fmt.Errorf("it is of network %q", l.Name)
	}
	return l, nil
}
