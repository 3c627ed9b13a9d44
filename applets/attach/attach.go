// Package attach is the flow of all interface plugins: what ADD, CHECK, DEL, GET,
// STATUS and GC do, in which order, and how a failed ADD is undone. A plugin implements the
// steps in which it differs from others, see [Interface].
//
// Begin reading at Interface.add (add.go); the other verbs have a file each. veth.go is
// shared by the plugins that make a pair, master.go by those with a parent device. The
// package knows no particular plugin, and the plugins know no order.
package attach

import (
	"cmp"
	"context"

	"cnibox/applets/netns"
	"cnibox/internal/once"
	"cnibox/internal/undo"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Need is whether a plugin works with an IPAM plugin.
type Need int

// The zero value leaves it to the configuration.
const (
	Optional Need = iota
	Required
	Never
	Chained // required, unless prevResult has addresses, which then are the link's
)

// An Interface is what one interface plugin adds to the flow; P is a pointer to its
// configuration, so that the compiler makes one copy of the flow for all plugins. Every step but
// Create may be nil.
//
// The steps are in the order of the verbs that call them, and of ADD in the order of
// the flow. A step of ADD registers what it does with [Op.Undo] first or at once.
type Interface[P any] struct {
	Kind  string // of the container's link, as in IFLA_INFO_KIND; empty: any
	IPAM  Need
	NoMAC bool // no step asks for [spec.Request.MAC], so CNI_ARGS are the IPAM plugin's alone

	// NoNetdev reports whether a configuration is for a device without a netdev: Create does not
	// set op.Link then, no link is configured or checked, and GET needs Describe. Nil: every
	// configuration is for a netdev.
	NoNetdev func(P) bool

	// Shared reports whether other hosts are on the link's segment, so that addresses are checked
	// for duplicates; nil: none is. Down: ADD leaves the link down, without addresses; nil: it
	// never does.
	Shared, Down func(P) bool

	Validate  func(P) error                                 // the configuration alone; errors have code 7
	Resources func(P) spec.Resources                        // of a configuration that is valid
	Create    Step[P]                                       // makes the link, down, in op.NS, named IfName, and sets op.Link
	Resolve   Step[P]                                       // addresses known, nothing set: gateways and routes of op.Result
	Configure Step[P]                                       // addresses, routes, up; nil: [Op.Configure]
	Setup     Step[P]                                       // the host's side: gateway, masquerade
	Ready     Step[P]                                       // waits until the link carries traffic
	Verify    Step[P]                                       // CHECK beyond kind, addresses and routes
	Describe  Step[P]                                       // GET: the interfaces of op.Result, from the live links; nil: the container's link
	Remove    Step[P]                                       // DEL otherwise than by deleting the link IfName in op.NS; with it ADD does not label the link
	Cleanup   Step[P]                                       // DEL of all but the link, at the same time; op.NS may be nil, the configuration empty
	Probe     func(context.Context, *spec.Request, P) error // STATUS beyond the IPAM plugin's
	Collect   Step[P]                                       // GC beyond links and the IPAM plugin's
	Prepare   Step[P]                                       // see [spec.Verbs]; of no attachment
	Restore   Step[P]                                       // RESTORE of what is on the host; op.Result has the addresses and routes, and op.Link is there

	// Routes are what the container has in place of the kernel's routes to the networks of its
	// addresses; nil: it has those.
	Routes func(*Op) []rtnl.Route

	RemoveNetwork func(context.Context, *spec.Request, P) error // see [spec.Verbs]; nil: ADD makes nothing for the network

	newConf func() P // an empty configuration
}

// A Step is what a plugin does at one point of the flow.
type Step[P any] func(context.Context, *Op, P) error

// run is a step that a plugin need not have.
func (s Step[P]) run(ctx context.Context, op *Op, c P) error {
	if s == nil {
		return nil
	}
	return s(ctx, op, c)
}

// Verbs returns the flow with the steps of a plugin whose configuration is a C.
// A plugin without a GC or STATUS of its own gets those of its links and of its IPAM
// plugin.
func Verbs[C any](plugin Interface[*C]) spec.Verbs {
	return (&plugin).verbs(func() *C { return new(C) })
}

func (p *Interface[P]) verbs(newConf func() P) spec.Verbs {
	p.newConf = newConf
	v := spec.Verbs{
		Add: p.add, Check: p.check, Del: p.del, Get: p.get, Status: p.status, GC: p.gc, Validate: p.validate,
		Restore: p.restore, Args: !p.NoMAC, MAC: !p.NoMAC, Enters: true, Interface: true}
	v.Holds, v.Veth = p.holds, p.Kind == "veth"
	if p.RemoveNetwork != nil {
		v.RemoveNetwork = func(ctx context.Context, r *spec.Request) error {
			c, err := p.conf(r)
			if err != nil {
				return err
			}
			return p.RemoveNetwork(ctx, r, c)
		}
	}
	if p.Prepare != nil {
		v.Prepare = p.prepare
	}
	return v
}

// validate is what ADD checks before it opens anything, and what its IPAM plugin does.
func (p *Interface[P]) validate(r *spec.Request) (resources spec.Resources, err error) {
	c, err := p.conf(r)
	if err == nil && p.IPAM != Chained { // the addresses may be those of prevResult
		err = checkAddressed(r, p.IPAM)
	}
	if err == nil && !p.NoMAC {
		_, err = r.MAC()
	}
	if err == nil && r.Net.IPAM.Type != "" {
		resources, err = r.Validate(r.Net.IPAM.Type)
	}
	if err == nil && p.Resources != nil {
		own := p.Resources(c)
		resources.Link, resources.Routed = own.Link, own.Routed
	}
	return resources, err
}

// conf decodes and checks the plugin's configuration.
// Errors have code 7. Nothing has been touched yet.
func (p *Interface[P]) conf(r *spec.Request) (P, error) {
	c := p.newConf()
	err := cmp.Or(r.Decode(keys(c)), r.CheckIPAM())
	switch {
	case err != nil:
	case p.IPAM == Required && r.Net.IPAM.Type == "":
		err = needsIPAM(r)
	case p.IPAM == Never && r.Net.IPAM.Type != "":
		err = spec.Errorf(spec.CodeConfig, "%s: \"ipam\" is not supported", r.Net.Type).AtKey("ipam")
	case p.Validate != nil:
		if err = p.Validate(c); err != nil {
			err = spec.Errorf(spec.CodeConfig, "%w", err)
		}
	}
	return c, err
}

// confOrZero is conf for the verbs that release: an invalid configuration is a warning, as the
// names of the attachment are enough.
func (p *Interface[P]) confOrZero(r *spec.Request) P {
	c, err := p.conf(r)
	if err != nil {
		r.Warn("%v: releasing what is owned all the same", err)
		c = p.newConf()
	}
	return c
}

// needsIPAM is the error of a plugin that requires an IPAM plugin.
func needsIPAM(r *spec.Request) *spec.Error {
	return spec.Errorf(spec.CodeConfig, "%s interface requires an IPAM configuration", r.Net.Type).
		WithDetails("no plugin name provided: set \"ipam.type\"").AtKey("")
}

// is calls a question about the configuration that a plugin need not answer; nil is no.
func is[P any](question func(P) bool, c P) bool { return question != nil && question(c) }

// hasNetdev reports whether a configuration is for a netdev.
func (p *Interface[P]) hasNetdev(c P) bool { return !is(p.NoNetdev, c) }

// An Op is one verb at work on one attachment.
//
// It and its sockets live as long as the verb. Links are looked up by name once, then by index.
type Op struct {
	*spec.Request
	NS         *rtnl.NS   // nil when DEL finds none, and for GC
	Host, Cont *rtnl.Conn // Cont is nil when NS is
	Result     *spec.Result
	Link       *rtnl.Link // the container's link, once it exists
	DAD        bool       // duplicate address detection is wanted
	Container  int        // index of the container's link in Result.Interfaces

	ctx       context.Context // the verb's, for a [Driver]
	byName    bool            // DEL finds the link by its name, so ADD labels it
	closeHost func()          // Host may be the socket of many attachments
	ending    *ending         // of a DEL in a context of [Together.Collect]; nil: it ends at once
	undo      undo.Stack
}

// Undo registers how to undo what was just done, or is about to be tried, should ADD fail:
// see [undo.Stack.Add].
func (op *Op) Undo(what string, fn func(context.Context) error) { op.undo.Add(what, fn) }

// AddInterface enters an interface into the result and returns its index.
func (op *Op) AddInterface(i spec.Interface) int {
	op.Result.Interfaces = append(op.Result.Interfaces, i)
	return len(op.Result.Interfaces) - 1
}

// open opens the sockets; with a namespace, one in it too. The caller closes the Op, and
// with it the namespace. Nothing has been changed.
func open(ctx context.Context, r *spec.Request, ns *rtnl.NS) (op *Op, err error) {
	op = &Op{Request: r, Result: &spec.Result{}, NS: ns}
	host := netns.Host(r.Call)
	if once.Remembers(ctx) {
		host = rtnl.Host() // what a call keeps is closed at its end
	}
	dial := func() (*rtnl.Conn, error) { return rtnl.Dial(host) }
	if op.Host, op.closeHost, err = once.Open(ctx, "host's socket", dial, func(c *rtnl.Conn) { c.Close() }); err == nil && ns != nil {
		op.Cont, err = rtnl.Dial(ns)
	}
	if err != nil {
		op.close()
		return nil, err
	}
	return op, nil
}

// enter is open with the container's namespace, without which ADD, CHECK and GET cannot do.
func enter(ctx context.Context, r *spec.Request) (*Op, error) {
	ns, err := netns.Open(r.Call)
	if err != nil {
		return nil, err
	}
	return open(ctx, r, ns)
}

// close closes what was opened.
func (op *Op) close() {
	if op.Cont != nil {
		op.Cont.Close()
	}
	if op.Host != nil {
		op.closeHost()
	}
	if op.NS != nil {
		op.NS.Close()
	}
}
