package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// run makes the request of one plugin for a verb and invokes it; more are members for its
// configuration.
func (r *Runner) run(ctx context.Context, verb spec.Verb, l *List, p *Plugin, t RuntimeConf, prev *spec.Result, more ...map[string]any) (*spec.Result, error) {
	req, err := r.request(verb, l, p, t, more)
	if err != nil {
		return nil, failed(verb, l, p, err)
	}
	return r.invoke(ctx, l, p, req, prev)
}

// invoke runs one plugin. prev is the result of the plugin before it, or the cached one; nil
// leaves that of the configuration. The error begins with libcni's text, which users search
// for, and has the plugin's code.
func (r *Runner) invoke(ctx context.Context, l *List, p *Plugin, req *spec.Request, prev *spec.Result) (*spec.Result, error) {
	if prev != nil {
		req.Prev = prev
	}
	res, err := r.Invoker.Invoke(ctx, p.Type, req)
	if err != nil {
		if _, missing := r.Invoker.Find(p.Type); missing != nil {
			err = spec.AtKey("type", err)
		}
		return nil, failed(req.Call.Verb, l, p, err)
	}
	return res, nil
}

// failed adds the plugin to an error, in libcni's words, and the place of the key that the error
// is about. The error of a misspelled plugin has only the place, as in lint.
func failed(verb spec.Verb, l *List, p *Plugin, err error) error {
	if errors.Is(err, errMisspelled) && p.From.File != "" {
		return p.From.within(err)
	}
	return p.From.withPlace(fmt.Errorf("plugin type=%q name=%q failed (%s): %w", p.Type, l.Name, verbName(verb), err))
}

// addRequests makes the requests of an ADD, before the ADD of any plugin changes something. It
// returns an error for an invalid configuration, and for a plugin or IPAM plugin that is
// missing or does not support the version of the list.
func (r *Runner) addRequests(l *List, t RuntimeConf) ([]*spec.Request, error) {
	reqs := make([]*spec.Request, len(l.Plugins))
	for i := range l.Plugins {
		p := &l.Plugins[i]
		var err error
		reqs[i], err = r.request(spec.Add, l, p, t, nil)
		if err == nil {
			err = r.serves("type", p.Type, reqs[i])
		}
		if err == nil && p.IPAM != "" {
			err = r.serves("ipam.type", p.IPAM, reqs[i])
		}
		if err != nil {
			return nil, failed(spec.Add, l, p, err)
		}
	}
	return reqs, nil
}

// Validate returns the error that an ADD would return before it changes anything, or that a plugin
// of this program has for the configuration; the namespace may be missing.
func (r *Runner) Validate(l *List, t RuntimeConf) error {
	if _, err := l.Supported(); err != nil {
		return err
	}
	quiet := *r
	quiet.Warn = func(string, ...any) {} // ADD warns
	reqs, err := quiet.addRequests(l, t)
	for i, req := range reqs {
		p := &l.Plugins[i]
		if _, err := req.Validate(p.Type); err != nil {
			return failed(spec.Add, l, p, err)
		}
	}
	return err
}

// serves returns an error if a plugin is missing, or is built in and would reject the request; key is
// the key of its name in the configuration. What an external plugin supports is not known before it runs.
func (r *Runner) serves(key, plugin string, req *spec.Request) error {
	builtIn, err := r.Invoker.Find(plugin)
	if err != nil {
		return spec.AtKey(key, err)
	}
	if builtIn == nil {
		return nil
	}
	return builtIn.CheckRequest(req)
}

// request makes the request of a plugin. Its configuration gets the name and the version of the list
// and, in runtimeConfig, the capabilities that the plugin declares and the caller supplies; if there are
// none, its own runtimeConfig stays. The member capabilities is removed, as the specification requires
// and libcni does not do.
func (r *Runner) request(verb spec.Verb, l *List, p *Plugin, t RuntimeConf, more []map[string]any) (*spec.Request, error) {
	set := map[string]any{"cniVersion": l.CNIVersion, "name": l.Name}
	for _, m := range more {
		maps.Copy(set, m)
	}
	supplied := make(map[string]json.RawMessage)
	for key, v := range t.Capabilities {
		if p.Capabilities[key] {
			supplied[key] = v
		}
	}
	if len(supplied) > 0 {
		set["runtimeConfig"] = supplied
	}
	conf, err := spec.Merge(p.conf, set, "capabilities")
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	call := spec.Call{
		ContainerID: t.ContainerID, NetNS: t.NetNS, IfName: t.IfName,
		Args: t.CNIArgs(), Path: r.Path, NetNSOverride: t.NetNSOverride, Session: t.session,
	}
	if r.call != nil {
		call = *r.call
		call.Session = t.session
	}
	call.Verb = verb
	req, err := spec.NewRequest(call, conf)
	if err != nil {
		return nil, err
	}
	req.Invoker, req.Warn = r.Invoker, r.Warn
	return req, nil
}

// Request returns the request that a verb makes for a plugin of the list, for inspection.
func (r *Runner) Request(verb spec.Verb, l *List, p *Plugin, t RuntimeConf) (*spec.Request, error) {
	return r.request(verb, l, p, t, nil)
}

// version returns the list's version, which is not checked before the list is run, as in
// libcni. The error has code 1.
func (l *List) version() (spec.Version, error) {
	v, err := spec.ParseVersion(l.CNIVersion)
	if err != nil {
		return v, spec.Errorf(spec.CodeVersion, "network %s: %w", l.Name, err)
	}
	return v, nil
}

// Supported is [List.version] for an ADD: the version must be written exactly as one of
// those that exist, since its result could not be read otherwise.
func (l *List) Supported() (spec.Version, error) {
	v, err := l.version()
	if err != nil || l.CNIVersion == "" || v.String() == l.CNIVersion && slices.Contains(spec.Versions(spec.Version{}), v) {
		return v, err
	}
	e := &spec.Error{
		Code: spec.CodeVersion, Msg: "incompatible CNI versions",
		Details: fmt.Sprintf("config is %q, this runtime supports %v", l.CNIVersion, spec.Versions(spec.Version{})),
	}
	return v, l.From.withPlace(e.AtKey("cniVersion"))
}

// verbName returns the verb as it is in libcni's errors.
func verbName(v spec.Verb) string {
	if v == spec.Del {
		return "delete"
	}
	return strings.ToLower(string(v))
}
