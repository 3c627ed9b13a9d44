// Package chained is the common flow of the plugins that work on the prevResult of others: tuning,
// vrf, sbr, bandwidth, portmap and firewall. It reads the configuration, opens and locks the
// namespace, finds the owner of the interface and its record, undoes changes, and answers GET.
package chained

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/spec"
)

// A Driver implements the steps of one chained plugin, for one verb. Its exported fields are the
// keys of the configuration. Embed [Defaults] and write the methods in which the plugin differs.
// Apply registers the undo of each change with [Op.Undo], before the change or right after it.
type Driver interface {
	Validate(*spec.Request) error // checks the configuration alone; fills in defaults; errors without a code have code 7
	Resources() spec.Resources    // of a valid configuration
	Needs() Need                  // what Apply and Check require
	Apply(*Op) error              // ADD, RESTORE: makes what is configured; does not repeat what exists; the result is op.Prev
	Check(*Op) error              // CHECK: looks for what Apply makes; the code is 102
	Known(*Op) (bool, error)      // GET: whether the attachment is on record
	Release(*Op) error            // DEL: removes what Apply made; op.NS and op.Link may be nil, and the configuration invalid
	Probe(*Op) error              // STATUS: why every ADD would fail on this host; the code is 50
	Collect(*Op) error            // GC: deletes what stale attachments own, and their records
	Holds(*Op) []spec.Holding     // what Apply makes, from the configuration and op.Prev alone
}

// A Need is what a verb opens.
type Need int

// DEL opens the interface and the namespace as far as they exist, except with NeedNothing.
const (
	NeedLink    Need = iota // the interface
	NeedNS                  // the namespace alone; op.Cont is nil until [Op.ID] opens it
	NeedPresent             // both, as far as they exist
	NeedNothing             // neither
)

// Defaults implements the steps of a plugin that has a record and works on the interface.
type Defaults struct{}

// Validate accepts any configuration.
func (Defaults) Validate(*spec.Request) error { return nil }

// Resources returns none.
func (Defaults) Resources() spec.Resources { return spec.Resources{} }

// Needs requires the interface.
func (Defaults) Needs() Need { return NeedLink }

// Known looks for the record.
func (Defaults) Known(op *Op) (bool, error) {
	return op.Dir.Head(op.Attachment) != nil, nil
}

// Collect deletes stale records.
func (Defaults) Collect(op *Op) error {
	return op.Dir.DeleteStale(op.Network, op.Valid)
}

// Stored has the key of plugins with records.
type Stored struct {
	DataDir string `json:"dataDir"`
}

func (s *Stored) dataDir() string { return s.DataDir }

// A Plugin describes a chained plugin to the flow. It is data: nothing runs at start.
type Plugin struct {
	Facts     spec.Facts // the flow adds what holds for all chained plugins
	DataDir   record.Dir // the default directory of its records; empty: the plugin has none
	Restores  bool       // the plugin has a RESTORE
	Restored  string     // what RESTORE reports where CHECK fails; empty: Apply writes its own report
	Unchained string     // the reference's words for a missing prevResult, if others than those of most plugins
	Confine   func(conf map[string]json.RawMessage) (leftOut string)
	New       func() Driver
}

// Spec returns the plugin's facts and verbs.
func (p *Plugin) Spec() spec.Plugin {
	v := spec.Plugin{
		Facts: p.Facts, Add: p.add, Check: p.check, Del: p.del, Get: p.get, Status: p.status, GC: p.gc,
		Validate: p.validate, Holds: p.holds, Confine: p.Confine}
	v.Chained = true
	if p.DataDir != "" {
		v.Records = record.DirFunc(p.DataDir)
	}
	if p.Restores {
		v.Restore = p.restore
	}
	return v
}

// read is for verbs that need a valid configuration.
func (p *Plugin) read(ctx context.Context, r *spec.Request) (d Driver, op *Op, err error) {
	d, op = p.New(), &Op{Op: frame.New(ctx, r)}
	if err := frame.Read(r, d); err != nil {
		return nil, nil, err
	}
	if s, ok := d.(interface{ dataDir() string }); ok {
		op.Dir, err = record.ResolveDir(r.Call, s.dataDir(), p.DataDir)
	}
	return d, op, err
}

// readAnyway is for verbs that work without one: an invalid configuration is a warning.
func (p *Plugin) readAnyway(ctx context.Context, r *spec.Request) (d Driver, op *Op) {
	d, op = p.New(), &Op{Op: frame.New(ctx, r)}
	if err := frame.Read(r, d); err != nil {
		if r.Call.Verb != spec.Get {
			r.Warn("ignored for %s: %v", r.Call.Verb, err)
		}
		op.Invalid = true
	}
	if p.DataDir != "" {
		op.Dir = record.ConfiguredDir(r, p.DataDir)
	}
	return d, op
}

func (p *Plugin) validate(r *spec.Request) (spec.Resources, error) {
	d, _, err := p.read(context.Background(), r)
	if err != nil {
		return spec.Resources{}, err
	}
	return d.Resources(), nil
}

// add makes all of the configuration, or undoes what it made: ADD and RESTORE.
func (p *Plugin) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil && !op.Restoring() {
		return nil, spec.Errorf(spec.CodeConfig, "%s", cmp.Or(p.Unchained, "must be called as chained plugin")).
			WithDetails("%s must be called as chained plugin: it needs the prevResult of the plugin that made %s", r.Net.Type, r.IfName)
	}
	if err := op.openLocked(d.Needs(), spec.CodeConfig); err != nil {
		return nil, err
	}
	defer op.Unlock()
	if op.Restoring() && p.Restored != "" && d.Check(op) == nil {
		return r.Prev, nil
	}
	if err := op.Failed(d.Apply(op)); err != nil {
		return nil, err
	}
	if op.Restoring() && p.Restored != "" {
		op.Did("%s", p.Restored)
	}
	return r.Prev, nil
}

func (p *Plugin) restore(ctx context.Context, r *spec.Request) error {
	_, err := p.add(ctx, r)
	return err
}

func (p *Plugin) check(ctx context.Context, r *spec.Request) error {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return err
	}
	if err := op.open(d.Needs(), spec.CodeCheck); err != nil {
		return err
	}
	return d.Check(op)
}

// del releases what the attachment owns, then deletes its record.
func (p *Plugin) del(ctx context.Context, r *spec.Request) error {
	d, op := p.readAnyway(ctx, r)
	need := NeedPresent
	if d.Needs() == NeedNothing {
		need = NeedNothing
	}
	if err := op.openLocked(need, 0); err != nil {
		return err
	}
	defer op.Unlock()
	if err := d.Release(op); err != nil || op.Kept || op.Dir == "" {
		return err
	}
	return op.Dir.Remove(record.Name(r.Attachment))
}

func (p *Plugin) status(ctx context.Context, r *spec.Request) error {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return err
	}
	return d.Probe(op)
}

func (p *Plugin) gc(ctx context.Context, r *spec.Request) error {
	d, op := p.readAnyway(ctx, r)
	return d.Collect(op)
}

func (p *Plugin) holds(ctx context.Context, r *spec.Request) ([]spec.Holding, error) {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return nil, err
	}
	return d.Holds(op), nil
}
