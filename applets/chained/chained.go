// Package chained is the common flow of the plugins that work on the prevResult of others: tuning,
// vrf, sbr, bandwidth, portmap and firewall. It reads the configuration, opens and locks the
// namespace, finds the owner of the interface and its record, undoes changes, and answers GET.
package chained

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/undo"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Driver implements the steps of one chained plugin, for one verb. Its exported fields are the
// keys of the configuration. It embeds [Defaults].
type Driver interface {
	// Validate checks the configuration alone, and fills in defaults. Errors without a code have
	// code 7.
	Validate(*spec.Request) error

	// Apply makes what is configured, unless it exists: ADD and, with op.Restoring, RESTORE. It
	// registers an undo for each change. The result is op.Prev.
	Apply(*Op) error

	// Check looks for what Apply makes. Errors have code 102.
	Check(*Op) error

	// Release removes what Apply made: DEL. Namespace and interface may be missing, and the
	// configuration may be invalid.
	Release(*Op) error

	// Probe reports why every ADD would fail on this host: STATUS. Errors have code 50.
	Probe(*Op) error

	// Needs returns what Apply and Check require.
	Needs() Need

	// Holds returns what Apply makes, from the configuration and op.Prev alone.
	Holds(*Op) []spec.Holding

	// Resources returns what the configuration uses.
	Resources() spec.Resources

	// Known reports whether the attachment is on record: GET.
	Known(*Op) (bool, error)

	// Collect deletes what stale attachments own, and their records: GC.
	Collect(*Op) error
}

// A Need is what a verb opens.
type Need int

const (
	Link      Need = iota // the interface
	Namespace             // the namespace alone
	Present               // both, as far as they exist
	Nothing               // neither, also at DEL
)

// Defaults implements the steps of a plugin that has a record and works on the interface.
type Defaults struct{}

// Needs requires the interface.
func (Defaults) Needs() Need { return Link }

// Resources returns none.
func (Defaults) Resources() spec.Resources { return spec.Resources{} }

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
	Name      string
	Since     spec.Version // zero: all versions
	Args, MAC bool         // see [spec.Plugin]
	DataDir   record.Dir   // the default directory; empty: the plugin has no records
	Restores  bool         // the plugin has a RESTORE
	Replaces  bool         // see [spec.Plugin]
	Unchained string       // the reference's words for a missing prevResult, if others than those of most plugins
	Restored  string       // what RESTORE reports where CHECK fails; empty: Apply writes its own report
	Confine   func(conf map[string]json.RawMessage) (leftOut string)
	New       func() Driver
}

// An Op is one verb on one attachment.
type Op struct {
	*spec.Request
	*Interface
	Dir       record.Dir
	Invalid   bool // the configuration is invalid (DEL, GET and GC)
	Restoring bool // the verb is RESTORE, not ADD
	Foreign   bool // the interface belongs to another attachment; see [Op.Owned]
	Kept      bool // Release has written or deleted the record itself
	undo.Stack

	ctx context.Context
}

// Context returns the verb's context.
func (op *Op) Context() context.Context { return op.ctx }

// Spec returns the verbs of the plugin.
func (p Plugin) Spec() spec.Plugin {
	v := spec.Plugin{
		Since: p.Since, Args: p.Args, MAC: p.MAC, Chained: true, Replaces: p.Replaces, Confine: p.Confine,
		Validate: func(r *spec.Request) (spec.Resources, error) {
			d, _, err := p.read(context.Background(), r)
			if err != nil {
				return spec.Resources{}, err
			}
			return d.Resources(), nil
		},
		Holds: p.holds,
		Add:   p.add, Check: p.check, Del: p.del, Get: p.get, Status: p.status, GC: p.gc,
	}
	if p.DataDir != "" {
		v.Records = record.DirFunc(p.DataDir)
	}
	if p.Restores {
		v.Restore = p.restore
	}
	return v
}

// Read decodes and validates a configuration.
func Read(r *spec.Request, d Driver) error {
	if err := r.Decode(d); err != nil {
		return err
	}
	if err := d.Validate(r); err != nil {
		return spec.Invalid(err, "type")
	}
	return nil
}

// read is for verbs that need a valid configuration.
func (p Plugin) read(ctx context.Context, r *spec.Request) (d Driver, op *Op, err error) {
	d, op = p.New(), &Op{Request: r, Interface: &Interface{}, ctx: ctx}
	if err := Read(r, d); err != nil {
		return nil, nil, err
	}
	if s, ok := d.(interface{ dataDir() string }); ok {
		op.Dir, err = record.ResolveDir(r.Call, s.dataDir(), p.DataDir)
	}
	return d, op, err
}

// readAnyway is for verbs that work without one: an invalid configuration is a warning.
func (p Plugin) readAnyway(ctx context.Context, r *spec.Request) (d Driver, op *Op) {
	d, op = p.New(), &Op{Request: r, Interface: &Interface{}, ctx: ctx}
	if err := Read(r, d); err != nil {
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

// open opens what is needed. missingCode is the code of the error for a missing interface.
func (op *Op) open(need Need, missingCode int) (err error) {
	switch need {
	case Link:
		op.Interface, err = Open(op.Request, missingCode)
	case Namespace:
		op.Interface, err = openNamespace(op.Request)
	case Present:
		op.Interface, err = Open(op.Request, 0)
	}
	return err
}

// Host returns the session's socket on the host.
func (op *Op) Host() (*rtnl.Conn, error) { return rtnl.OnHost(op.Call.Session) }

// openLocked is open for verbs that change the namespace.
func (op *Op) openLocked(need Need, missingCode int) error {
	if err := op.open(need, missingCode); err != nil || op.NS == nil {
		return err
	}
	return op.Lock(op.ctx)
}

// add makes all of the configuration, or undoes what it made: ADD and RESTORE.
func (p Plugin) add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return nil, err
	}
	op.Restoring = r.Call.Verb == spec.Restore
	if r.Prev == nil && !op.Restoring {
		return nil, spec.Errorf(spec.CodeConfig, "%s", cmp.Or(p.Unchained, "must be called as chained plugin")).
			WithDetails("%s must be called as chained plugin: it needs the prevResult of the plugin that made %s", p.Name, r.IfName)
	}
	if err := op.openLocked(d.Needs(), spec.CodeConfig); err != nil {
		return nil, err
	}
	defer op.Unlock()
	if op.Restoring && p.Restored != "" && d.Check(op) == nil {
		return r.Prev, nil
	}
	if err := op.Failed(op.ctx, d.Apply(op)); err != nil {
		return nil, err
	}
	if op.Restoring && p.Restored != "" {
		op.Did("%s", p.Restored)
	}
	return r.Prev, nil
}

func (p Plugin) restore(ctx context.Context, r *spec.Request) error {
	_, err := p.add(ctx, r)
	return err
}

func (p Plugin) check(ctx context.Context, r *spec.Request) error {
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
func (p Plugin) del(ctx context.Context, r *spec.Request) error {
	d, op := p.readAnyway(ctx, r)
	need := Present
	if d.Needs() == Nothing {
		need = Nothing
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

func (p Plugin) status(ctx context.Context, r *spec.Request) error {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return err
	}
	return d.Probe(op)
}

func (p Plugin) gc(ctx context.Context, r *spec.Request) error {
	d, op := p.readAnyway(ctx, r)
	return d.Collect(op)
}

func (p Plugin) holds(ctx context.Context, r *spec.Request) ([]spec.Holding, error) {
	d, op, err := p.read(ctx, r)
	if err != nil {
		return nil, err
	}
	return d.Holds(op), nil
}
