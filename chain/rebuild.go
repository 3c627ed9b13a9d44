package chain

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/spec"
)

// Rebuild writes the entry of an attachment that exists, but whose entry is lost or broken, with the
// current configuration and the arguments in t. Its result is what GET of the plugins returns without a
// cached one, and CHECK must accept it. Without write it only checks whether that is possible. The error
// is os.ErrExist if there is an entry.
func (r *Runner) Rebuild(ctx context.Context, l *List, t RuntimeConf, write bool) error {
	a := t.on(l)
	v, err := l.Supported()
	if err == nil && !v.AtLeast(spec.V040) {
		err = spec.Errorf(spec.CodeVersion, "cniVersion %s has no CHECK", l.CNIVersion)
	}
	if err != nil {
		return err
	}
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := r.Cache.Lookup(a); err == nil {
		return fmt.Errorf("entry of %s: %w", EntryOf(a).Title(), os.ErrExist)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer r.begin(&t, a)()
	if err := t.openNetNS(); err != nil {
		return err
	}
	e, err := t.entry(l)
	if err != nil {
		return err
	}
	res, err := r.getAll(ctx, l, t, nil)
	if err == nil {
		err = r.checkAll(ctx, l, t, res)
	}
	if err != nil || !write {
		return err
	}
	doc, err := res.EncodeFor(v, t.IfName)
	if err == nil {
		err = r.Cache.Begin(e)
	}
	if err != nil {
		return err
	}
	return r.Cache.Finish(e, doc)
}
