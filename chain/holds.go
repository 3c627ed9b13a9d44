package chain

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// A Describer describes lists and attachments with the plugins of this program; it runs no plugin.
// It does not know which program a runtime has run as a plugin: it describes an external plugin
// like the built-in one with the same name.
type Describer struct {
	runner   Runner
	stateDir string
}

// NewDescriber returns a Describer for the plugins that lookup finds by their type. The state
// directory is that of [spec.Call].
func NewDescriber(lookup func(plugin string) (spec.Plugin, bool), stateDir string) *Describer {
	local := &Invoker{Lookup: lookup}
	return &Describer{Runner{Invoker: local.Once(), Warn: func(string, ...any) {}}, stateDir}
}

// request returns the request of a plugin with its verbs and those of its IPAM plugin; nil: it is
// external.
func (d *Describer) request(verb spec.Verb, l *List, p *Plugin, t RuntimeConf) (r *spec.Request, builtIn, ipam *spec.Plugin) {
	r, err := d.runner.request(verb, l, p, t, nil)
	if err != nil {
		return nil, nil, nil
	}
	r.Call.StateDir = d.stateDir
	builtIn, _ = d.runner.Invoker.Find(p.Type)
	if p.IPAM != "" {
		ipam, _ = d.runner.Invoker.Find(p.IPAM)
	}
	return r, builtIn, ipam
}

// A Use is what the plugins of a list use.
type Use struct {
	spec.Resources // of the plugins whose configuration is valid
	Stored         []Stored
	Publishes      bool // see [spec.Plugin]
}

// Stored has the directories in which one plugin and its IPAM plugin store their state.
type Stored struct {
	Records map[string]string // directories, by plugin; see [spec.Plugin]
	Leases  string            // a directory; empty: none
}

// Leases returns the first directory with leases; empty: there is none.
func (u *Use) Leases() (dir string) {
	for _, s := range u.Stored {
		dir = cmp.Or(dir, s.Leases)
	}
	return dir
}

// Uses describes a list or a configuration of one plugin, treating any version as the newest one.
// It omits what cannot be parsed.
func (d *Describer) Uses(doc []byte) (u Use) {
	list, err := parseAny(doc)
	if err != nil {
		return u
	}
	list.CNIVersion = spec.Newest.String()
	for i := range list.Plugins {
		p := &list.Plugins[i]
		s := Stored{Records: map[string]string{}}
		r, builtIn, ipam := d.request(spec.Status, list, p, RuntimeConf{})
		for plugin, v := range map[string]*spec.Plugin{p.Type: builtIn, p.IPAM: ipam} {
			if v != nil && v.Records != nil {
				s.Records[plugin] = v.Records(r)
			}
		}
		if ipam != nil && ipam.Leases != nil {
			s.Leases = ipam.Leases(r)
		}
		u.Stored = append(u.Stored, s)
		if builtIn == nil {
			continue
		}
		u.Publishes = u.Publishes || builtIn.Publishes
		if own, err := r.Validate(p.Type); err == nil {
			u.Add(own)
		}
	}
	return u
}

// A Held is a resource that an attachment has from a plugin.
type Held struct {
	Plugin string `json:"plugin"`
	spec.Holding
}

// Holds returns the resources of an attachment from its plugins, in the order of its list. The
// error is that of the cached entry; a plugin that cannot parse its configuration returns none,
// since CHECK reports that.
func (d *Describer) Holds(ctx context.Context, s *session.Session, e *Entry) (all []Held, err error) {
	l, prev, err := e.recorded(s)
	if err != nil {
		return nil, err
	}
	t := e.runtimeConf()
	t.session = s.For(0, e.Attachment().Key(), nil)
	defer t.session.Close()
	for i := range l.Plugins {
		p := &l.Plugins[i]
		req, builtIn, _ := d.request(spec.Check, l, p, t)
		if builtIn == nil || builtIn.Holds == nil {
			continue
		}
		req.Prev = prev
		list, err := builtIn.Holds(ctx, req)
		if err != nil {
			continue
		}
		for _, h := range list {
			all = append(all, Held{p.Type, h})
		}
	}
	return all, nil
}
