// Package attach is the one flow of all interface plugins: what ADD, CHECK,
// DEL, GET, STATUS and GC do, in which order, and how they undo it. A plugin
// fills in the steps in which it differs from the others, see [Interface].
//
// Begin reading at Interface.add (add.go), the flow that has to take itself back; the
// other verbs are in a file each. veth.go is shared by the plugins that make a pair.
// The package knows no particular plugin, and the plugins no order: the reference has
// the flow in each of them, nine times, and in most of them the cleanup after an error
// cannot run.
package attach

import (
	"context"
	"errors"
	"os"
	"reflect"

	"cnibox/internal/undo"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Need tells whether a plugin works with an IPAM plugin.
type Need int

// The zero value leaves it to the configuration.
const (
	Optional Need = iota
	Required
	Never
	Chained // required, unless prevResult has addresses, which then are the link's
)

// An Interface is all that tells one interface plugin from another. P is a pointer to
// its configuration: of code for pointers the compiler makes one copy, for structs one
// each, which are 6 KB. Every step may be nil but Create.
//
// The steps are in the order of the verbs that call them, and of ADD in the order of
// the flow. Whatever a step of ADD does it registers with [Op.Undo] first or at once.
type Interface[P any] struct {
	Kind  string // of the container end, as in IFLA_INFO_KIND; empty: any
	IPAM  Need
	NoMAC bool // no step asks for [spec.Request.MAC], so CNI_ARGS are the IPAM plugin's alone

	Validate func(P) error                                 // the configuration alone; errors have code 7
	Create   func(context.Context, *Op, P) error           // makes the link, down, in op.NS, named IfName, and sets op.Link
	Resolve  func(*Op, P) error                            // addresses known, nothing set: gateways and routes of op.Result
	Setup    func(context.Context, *Op, P) error           // the host's side: gateway, masquerade
	Ready    func(context.Context, *Op, P) error           // waits until the link carries traffic
	Verify   func(context.Context, *Op, P) error           // CHECK beyond kind, addresses and routes
	Describe func(*Op, P) error                            // GET: the interfaces of op.Result, from the live links
	Remove   func(context.Context, *Op, P) error           // DEL otherwise than by deleting the link in op.NS
	Cleanup  func(context.Context, *Op, P) error           // DEL of what lies outside the namespace, while the link goes
	Probe    func(context.Context, *spec.Request, P) error // STATUS beyond the IPAM plugin's
	Collect  func(context.Context, *Op, P) error           // GC beyond links and the IPAM plugin's
}

// Verbs returns the flow with the plugin's steps.
// A plugin without a GC or STATUS of its own gets those of its links and of its IPAM
// plugin.
func (i Interface[P]) Verbs() spec.Verbs {
	f := &flow{
		kind: i.Kind, ipam: i.IPAM, newConf: func() any { return reflect.New(reflect.TypeFor[P]().Elem()).Interface() },
		create: step(i.Create), setup: step(i.Setup), ready: step(i.Ready), verify: step(i.Verify),
		remove: step(i.Remove), cleanup: step(i.Cleanup), collect: step(i.Collect),
		resolve: quick(i.Resolve), describe: quick(i.Describe),
	}
	if i.Validate != nil {
		f.validate = func(c any) error { return i.Validate(c.(P)) }
	}
	if i.Probe != nil {
		f.probe = func(ctx context.Context, r *spec.Request, c any) error { return i.Probe(ctx, r, c.(P)) }
	}
	return spec.Verbs{Add: f.add, Check: f.check, Del: f.del, Get: f.get, Status: f.status, GC: f.gc, Args: !i.NoMAC}
}

// An Op is one verb at work on one attachment.
//
// It lives as long as the verb does, and with it the sockets: links are found by index
// after the first look, never by name again.
type Op struct {
	*spec.Request
	NS         *rtnl.NS   // nil when DEL, GET or GC finds none
	HostNS     *rtnl.NS   // the host's: always nil, which is the current namespace
	Host, Cont *rtnl.Conn // Cont is nil when NS is
	Result     *spec.Result
	Link       *rtnl.Link // the container end, once it exists
	DAD        bool       // duplicate address detection is wanted
	ViaGateway bool       // neighbours too are reached by way of the gateways
	StayDown   bool       // the container end is not brought up; without addresses only
	Container  int        // index of the container end in Result.Interfaces

	conf any // what the plugin's steps take
	undo undo.Stack
}

// Undo registers how to undo what was just done, or is about to be tried, should ADD fail:
// see [undo.Stack.Add].
func (op *Op) Undo(what string, fn func(context.Context) error) { op.undo.Add(what, fn) }

// AddInterface enters an interface into the result and returns its index.
func (op *Op) AddInterface(i spec.Interface) int {
	op.Result.Interfaces = append(op.Result.Interfaces, i)
	return len(op.Result.Interfaces) - 1
}

// open opens the sockets, and the namespace if there is one.
// The caller closes the Op. Nothing has been changed. Errors have code 8 for a path that
// is there and cannot be opened.
func open(r *spec.Request, conf any) (*Op, error) {
	op := &Op{Request: r, Result: &spec.Result{}, conf: conf}
	ns, err := rtnl.OpenNS(r.Call.NetNS)
	switch {
	case err == nil:
		op.NS = ns
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, rtnl.ErrNotNS):
		// gone: DEL goes on without, ADD, CHECK and GET use enter
	default:
		return nil, spec.Errorf(spec.CodeNetNS, "failed to open netns %q: %w", r.Call.NetNS, err)
	}
	if op.Host, err = rtnl.Dial(nil); err != nil {
		op.close()
		return nil, err
	}
	if op.NS != nil {
		if op.Cont, err = rtnl.Dial(op.NS); err != nil {
			op.close()
			return nil, err
		}
	}
	return op, nil
}

// enter is open for the verbs that cannot do without the namespace: its absence is an
// error of code 8.
func enter(r *spec.Request, conf any) (*Op, error) {
	op, err := open(r, conf)
	if err != nil || op.NS != nil {
		return op, err
	}
	op.close()
	_, err = rtnl.OpenNS(r.Call.NetNS) // again, for the reason that open has let pass
	return nil, spec.Errorf(spec.CodeNetNS, "failed to open netns %q: %w", r.Call.NetNS, err)
}

// close gives the descriptors back; those that were never opened are left out.
func (op *Op) close() {
	if op.Cont != nil {
		op.Cont.Close()
	}
	if op.Host != nil {
		op.Host.Close()
	}
	if op.NS != nil {
		op.NS.Close()
	}
}
