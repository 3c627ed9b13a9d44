package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/spec"
)

// A Change replaces the value of one capability of an attachment, as if its ADD had received the
// new value.
type Change struct {
	Capability string

	// Value returns the new value for that of the ADD; nil: the ADD had none. It receives a copy of
	// the entry.
	Value func(e *Entry, now json.RawMessage) (json.RawMessage, error)

	// Less says that the plugins have less with the new value. At each moment the cache has at
	// least what the plugins have made, even if the process is killed: [Runner.Restore] makes what
	// is missing.
	Less bool
}

// Change repeats ADD of the plugins that declare the capability, each with the result of the ADD,
// and replaces the value in the cache. All of them must be built in, and replace their earlier
// result: see [spec.Plugin.Replaces]. After an error the cache and the plugins are unchanged.
func (r *Runner) Change(ctx context.Context, a spec.Attachment, ch Change) error {
	unlock, err := r.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	e, err := r.Cache.Lookup(a)
	if err = ignore(err, os.ErrNotExist); err == nil {
		err = e.finished(r.Cache.Title(a))
	}
	if err != nil {
		return err
	}
	if e.BootID == "" {
		defer r.Cache.removeLock(a.ContainerID) // another runtime, which does not remove it, may have attached it
	}
	old := e.runtimeConf()
	defer r.begin(&old, a)()
	l, prev, err := e.recorded(old.session)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Title(), err)
	}
	ns, _ := e.open()
	if old.session.Own(ns); ns == nil {
		return spec.Errorf(spec.CodeNetNS, "the network namespace of %s is gone: `cni-exec gc` releases what it had", e.Title())
	}
	if err := old.openNetNS(); err != nil {
		return err
	}
	plugins, err := r.replacing(l, ch.Capability)
	if err != nil {
		return err
	}
	t := old
	if t.Capabilities, err = ch.capabilities(e, plugins[0], old); err != nil {
		return err
	}
	if err := r.validateAll(l, plugins, t); err != nil {
		return err
	}
	defer interrupt.Begin()()
	after := *e
	after.CapabilityArgs = t.Capabilities
	if !ch.Less {
		if err := r.Cache.write(&after); err != nil {
			return err
		}
	}
	done := 0
	for ; done < len(plugins) && err == nil; done++ {
		_, err = r.run(ctx, spec.Add, l, plugins[done], t, prev)
	}
	if err == nil && ch.Less {
		err = r.Cache.write(&after)
	}
	if err == nil {
		return nil
	}
	errs := r.changeBack(ctx, l, plugins[:done], old, prev)
	if !ch.Less {
		errs = append(errs, r.Cache.write(e))
	}
	if uerr := errors.Join(errs...); uerr != nil {
		return spec.AsError(err).WithDetails("what it had could not be restored: %v", uerr)
	}
	return err
}

// capabilities returns those of the ADD with the new value; p is a plugin that declares the capability.
func (ch *Change) capabilities(e *Entry, p *Plugin, old RuntimeConf) (map[string]json.RawMessage, error) {
	now, err := p.capability(ch.Capability, old)
	if err != nil {
		return nil, err
	}
	value, err := ch.Value(e, now)
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	maps.Copy(all, old.Capabilities)
	all[ch.Capability] = value
	return all, nil
}

// changeBack repeats ADD of the plugins as it was, after a failed [Runner.Change].
func (r *Runner) changeBack(ctx context.Context, l *List, plugins []*Plugin, old RuntimeConf, prev *spec.Result) (errs []error) {
	ctx, cancel := interrupt.UndoContext(ctx, cmp.Or(r.UndoTimeout, defaultUndo))
	defer cancel()
	for _, p := range plugins {
		_, err := r.run(ctx, spec.Add, l, p, old, prev)
		errs = append(errs, err)
	}
	return errs
}

// replacing returns the plugins of a list that declare a capability. The error has code 7 if there
// are none, or if the ADD of one cannot be repeated.
func (r *Runner) replacing(l *List, capability string) (plugins []*Plugin, err error) {
	for i := range l.Plugins {
		p := &l.Plugins[i]
		if !p.Capabilities[capability] {
			continue
		}
		switch builtIn, err := r.Invoker.Find(p.Type); {
		case err != nil:
			return nil, failed(spec.Add, l, p, err)
		case builtIn == nil:
			return nil, spec.Errorf(spec.CodeConfig, "plugin %s is an external program, which only ADD and DEL can change: run del, then add", p.Type)
		case !builtIn.Replaces:
			return nil, spec.Errorf(spec.CodeConfig, "plugin %s declares %s, and cannot change it: del and add", p.Type, capability)
		}
		plugins = append(plugins, p)
	}
	if plugins == nil {
		return nil, spec.Errorf(spec.CodeConfig, "no plugin of network %s had the capability %s at the ADD", l.Name, capability)
	}
	return plugins, nil
}

// capability returns the value of a capability for a plugin; nil: none.
func (p *Plugin) capability(name string, t RuntimeConf) (json.RawMessage, error) {
	for key := range t.Capabilities {
		if p.Capabilities[key] { // then the configuration's own value does not count
			return t.Capabilities[name], nil
		}
	}
	var conf struct {
		RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(p.conf, &conf); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	return conf.RuntimeConfig[name], nil
}

// validateAll returns the error that an ADD of one of the plugins would return before it changes
// anything.
func (r *Runner) validateAll(l *List, plugins []*Plugin, t RuntimeConf) error {
	quiet := *r
	quiet.Warn = func(string, ...any) {} // ADD warns
	for _, p := range plugins {
		req, err := quiet.request(spec.Add, l, p, t, nil)
		if err == nil {
			_, err = req.Validate(p.Type)
		}
		if err != nil {
			return failed(spec.Add, l, p, err)
		}
	}
	return nil
}
