package attach

import (
	"context"

	"cnibox/spec"
)

// A Driver is what one interface plugin adds to the flow, for one verb. Its exported fields are the
// keys of the configuration. Embed [Defaults] and write the methods in which the plugin differs.
type Driver interface {
	Validate() error           // the configuration alone
	Link(*Op) error            // ADD: makes op.Link, down, in the container
	Gateways(*Op) error        // ADD: completes gateways and routes of op.Result; sets nothing
	Configure(*Op) error       // ADD: addresses, routes, up
	Check(*Op) error           // CHECK beyond kind, addresses and routes
	Probe(*spec.Request) error // STATUS beyond the IPAM plugin's
}

// Defaults are the steps of a plugin that has nothing of its own to do.
type Defaults struct{}

func (Defaults) Validate() error           { return nil }
func (Defaults) Gateways(*Op) error        { return nil }
func (Defaults) Configure(op *Op) error    { return op.Configure(op.ctx) }
func (Defaults) Check(*Op) error           { return nil }
func (Defaults) Probe(*spec.Request) error { return nil }

// A Plugin describes an interface plugin to the flow.
type Plugin struct {
	Kind string // of the container's link, as in IFLA_INFO_KIND
	IPAM Need
	New  func() Driver
}

// driven is a Driver as the configuration of an [Interface].
type driven struct{ Driver }

// Verbs returns the flow with the steps of the plugin's Driver.
func (p Plugin) Verbs() spec.Verbs {
	step := func(do func(Driver, *Op) error) Step[*driven] {
		return func(ctx context.Context, op *Op, d *driven) error {
			op.ctx = ctx
			return do(d.Driver, op)
		}
	}
	i := &Interface[*driven]{
		Kind: p.Kind, IPAM: p.IPAM,
		Validate:  func(d *driven) error { return d.Validate() },
		Create:    step(Driver.Link),
		Resolve:   step(Driver.Gateways),
		Configure: step(Driver.Configure),
		Verify:    step(Driver.Check),
		Probe:     func(_ context.Context, r *spec.Request, d *driven) error { return d.Probe(r) },
	}
	return i.verbs(func() *driven { return &driven{p.New()} })
}

// keys is what a configuration is decoded into.
func keys(c any) any {
	if d, ok := c.(*driven); ok {
		return d.Driver
	}
	return c
}
