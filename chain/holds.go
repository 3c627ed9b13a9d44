package chain

import (
	"context"

	"cnibox/spec"
)

// A Held is one thing that an attachment has of a plugin.
type Held struct {
	Plugin string `json:"plugin"`
	spec.Holding
}

// Holds returns what the plugins of an attachment say that it has of them, in the order of its
// list. External plugins are not asked. The error is that of the cached entry; a plugin that cannot read
// its configuration has nothing to say, since CHECK says that.
func (r *Runner) Holds(ctx context.Context, e *Entry) (all []Held, err error) {
	l, prev, err := e.recorded(ctx)
	if err != nil {
		return nil, err
	}
	for i := range l.Plugins {
		p := &l.Plugins[i]
		verbs, err := r.Invoker.Find(p.Type)
		if err != nil || verbs == nil || verbs.Holds == nil {
			continue
		}
		req, err := r.request(spec.Check, l, p, e.target(), nil)
		if err != nil {
			continue
		}
		req.Prev, req.Warn = prev, func(string, ...any) {}
		list, err := verbs.Holds(req)
		if err != nil {
			continue
		}
		for _, h := range list {
			all = append(all, Held{p.Type, h})
		}
	}
	return all, nil
}
