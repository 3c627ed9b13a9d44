package attach

import (
	"cmp"
	"context"

	"cnibox/spec"
)

// A flow is an [Interface] without its type parameter, so that the verbs are plain code.
//
// Steps find their configuration in the Op. Those that the plugin does not have do
// nothing; where that matters they are nil, see remove and describe.
type flow struct {
	kind    string
	ipam    Need
	newConf func() any

	validate func(any) error                                 // nil: nothing to check
	probe    func(context.Context, *spec.Request, any) error // nil: always healthy

	create, setup, ready, verify, remove, cleanup, collect stepFunc
	resolve, describe                                      quickFunc
}

// A stepFunc is a step; nil is one that the plugin does not have.
type stepFunc func(context.Context, *Op) error

// A quickFunc is a step that waits for nothing.
type quickFunc func(*Op) error

// step hands the configuration of the Op to a plugin's step.
func step[P any](fn func(context.Context, *Op, P) error) stepFunc {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context, op *Op) error { return fn(ctx, op, op.conf.(P)) }
}

// quick is step for those that wait for nothing.
func quick[P any](fn func(*Op, P) error) quickFunc {
	if fn == nil {
		return nil
	}
	return func(op *Op) error { return fn(op, op.conf.(P)) }
}

// do runs the step if the plugin has it.
func (s stepFunc) do(ctx context.Context, op *Op) error {
	if s == nil {
		return nil
	}
	return s(ctx, op)
}

// do runs the step if the plugin has it.
func (s quickFunc) do(op *Op) error {
	if s == nil {
		return nil
	}
	return s(op)
}

// conf decodes and checks the plugin's configuration.
// Errors have code 7. Nothing has been touched yet.
func (f *flow) conf(r *spec.Request) (any, error) {
	c := f.newConf()
	if err := cmp.Or(r.Decode(c), r.CheckIPAM()); err != nil {
		return nil, err
	}
	switch {
	case f.ipam == Required && r.Net.IPAM.Type == "":
		return nil, needsIPAM(r)
	case f.ipam == Never && r.Net.IPAM.Type != "":
		return nil, spec.Errorf(spec.CodeConfig, "%s: \"ipam\" is not supported", r.Net.Type)
	case f.validate == nil:
		return c, nil
	}
	if err := f.validate(c); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	return c, nil
}

// addressless reports why an ADD cannot do without an IPAM plugin, where none is
// configured. Errors have code 7.
func (f *flow) addressless(r *spec.Request) error {
	switch {
	case f.ipam == Chained && r.Prev != nil && len(r.Prev.IPs) > 0:
		return nil
	case f.ipam == Chained:
		return needsIPAM(r).WithDetails("in a chain the addresses of prevResult serve as well")
	case r.Net.Version.NeedsAddress():
		return spec.Errorf(spec.CodeConfig, "cannot convert: no valid IP addresses").
			WithDetails("cniVersion %s cannot express a result without addresses: use 0.3.0 or later, or configure \"ipam\"", r.Net.Version)
	}
	return nil
}

// needsIPAM is the error of a plugin that gives no interface without addresses.
func needsIPAM(r *spec.Request) *spec.Error {
	return spec.Errorf(spec.CodeConfig, "%s interface requires an IPAM configuration", r.Net.Type).
		WithDetails("no plugin name provided: set \"ipam.type\"")
}

// linkless tells that there is no container end to configure or look at: the configuration
// says so, if it has the method, of a device that a program has in the link's place.
func (op *Op) linkless() bool {
	c, ok := op.conf.(interface{ Linkless() bool })
	return ok && c.Linkless()
}

// lenient is conf for the verbs that release: what is wrong is told, and the names of
// the attachment are enough to go on without.
func (f *flow) lenient(r *spec.Request) any {
	c, err := f.conf(r)
	if err != nil {
		r.Warn("%v: releasing what is owned all the same", err)
		c = f.newConf()
	}
	return c
}
