package chain

import (
	"cmp"
	"context"

	"cnibox/spec"
)

// A Describer knows of lists and of attachments what the plugins of this program say of them. It runs no
// plugin. Which program a runtime has run as a plugin is not known: one that is external is taken to do what the one
// of its name does that is built in.
type Describer struct {
	runner   Runner
	stateDir string
}

// NewDescriber makes one of the plugins that lookup finds by their type. The state directory is that of
// [spec.Call].
func NewDescriber(lookup func(plugin string) (spec.Verbs, bool), stateDir string) *Describer {
	local := &Invoker{Lookup: lookup}
	return &Describer{Runner{Invoker: local.Once(), Warn: func(string, ...any) {}}, stateDir}
}

// request is that of a plugin, with its verbs and those of its IPAM plugin; nil: it is not of this program.
func (d *Describer) request(verb spec.Verb, l *List, p *Plugin, t Target) (r *spec.Request, verbs, ipam *spec.Verbs) {
	r, err := d.runner.request(verb, l, p, t, nil)
	if err != nil {
		return nil, nil, nil
	}
	r.Call.StateDir = d.stateDir
	verbs, _ = d.runner.Invoker.Find(p.Type)
	if p.IPAM != "" {
		ipam, _ = d.runner.Invoker.Find(p.IPAM)
	}
	return r, verbs, ipam
}

// A Use is what the plugins of a list use.
type Use struct {
	spec.Resources // of the plugins whose configuration is valid
	Stored         []Stored
	Veth           bool // an attachment has a link on the host, see [spec.Verbs]
	Publishes      bool // see [spec.Verbs]
}

// Stored is where one plugin and its IPAM plugin store what they must know later.
type Stored struct {
	Records map[string]string // directories, by plugin; see [spec.Verbs]
	Leases  string            // a directory; empty: none
}

// Leases is the first directory with leases; empty: there is none.
func (u *Use) Leases() (dir string) {
	for _, s := range u.Stored {
		dir = cmp.Or(dir, s.Leases)
	}
	return dir
}

// Uses describes a list or a configuration of one plugin, in the newest version of the specification,
// whichever it is of. Of what cannot be read nothing is known.
func (d *Describer) Uses(doc []byte) (u Use) {
	list, err := parseAny(doc)
	if err != nil {
		return u
	}
	list.CNIVersion = spec.Newest.String()
	for i := range list.Plugins {
		p := &list.Plugins[i]
		s := Stored{Records: map[string]string{}}
		r, verbs, ipam := d.request(spec.Status, list, p, Target{})
		for plugin, v := range map[string]*spec.Verbs{p.Type: verbs, p.IPAM: ipam} {
			if v != nil && v.Records != nil {
				s.Records[plugin] = v.Records(r)
			}
		}
		if ipam != nil && ipam.Leases != nil {
			s.Leases = ipam.Leases(r)
		}
		u.Stored = append(u.Stored, s)
		if verbs == nil {
			continue
		}
		u.Publishes = u.Publishes || verbs.Publishes
		u.Veth = u.Veth || i == 0 && verbs.Veth
		if own, err := r.Validate(p.Type); err == nil {
			u.Add(own)
		}
	}
	return u
}

// A Held is one thing that an attachment has of a plugin.
type Held struct {
	Plugin string `json:"plugin"`
	spec.Holding
}

// Holds returns what the plugins of an attachment say that it has of them, in the order of its
// list. The error is that of the cached entry; a plugin that cannot read its configuration has nothing to
// say, since CHECK says that.
func (d *Describer) Holds(ctx context.Context, e *Entry) (all []Held, err error) {
	l, prev, err := e.recorded(ctx)
	if err != nil {
		return nil, err
	}
	for i := range l.Plugins {
		p := &l.Plugins[i]
		req, verbs, _ := d.request(spec.Check, l, p, e.target())
		if verbs == nil || verbs.Holds == nil {
			continue
		}
		req.Prev = prev
		list, err := verbs.Holds(ctx, req)
		if err != nil {
			continue
		}
		for _, h := range list {
			all = append(all, Held{p.Type, h})
		}
	}
	return all, nil
}
