// Package attach is the flow of all interface plugins: what ADD, CHECK, DEL, GET, STATUS, GC and
// RESTORE do, in which order, and how a failed ADD is undone. A plugin implements the steps in which
// it differs from others, see [Driver].
//
// Begin reading at flow.go, which has the order of each verb. The other files are about what the
// steps work on: link.go, address.go, routes.go and lease.go for the container's link, veth.go for
// the plugins that make a pair, master.go for those with a parent device, forwarding.go and
// masquerade.go for the host. The package does not know the plugins, and the plugins do not know
// the order.
package attach

import (
	"context"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/undo"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Op is one verb on one attachment.
//
// Its namespace and sockets are those of the session. Links are looked up by name once, then by index.
type Op struct {
	*spec.Request
	NS         *netns.NS  // nil: missing, or gone
	Host, Cont *rtnl.Conn // Cont is nil when NS is
	Result     *spec.Result
	Link       *rtnl.Link // the container's link, once it exists
	Veth       *rtnl.Link // its peer on the host, of a plugin that makes a pair
	Bridge     *rtnl.Link // the bridge that Veth is a port of; nil: none
	PCIID      string     // of the container's device, where known
	Container  int        // index of the container's link in Result.Interfaces

	plugin  *Plugin
	facts   Facts
	ctx     context.Context
	newVeth bool // Veth is new
	undo    undo.Stack
}

// Context returns the verb's context.
func (op *Op) Context() context.Context { return op.ctx }

// Rules returns the tables of this program on the host.
func (op *Op) Rules() *nft.Table { return nft.In(op.Call.Session) }

// Undo registers the undo of a change that was just made, or is about to be tried, for a failed
// ADD: see [undo.Stack.Add].
func (op *Op) Undo(what string, fn func(context.Context) error) { op.undo.Add(what, fn) }

// AddInterface enters an interface into the result and returns its index.
func (op *Op) AddInterface(i spec.Interface) int {
	op.Result.Interfaces = append(op.Result.Interfaces, i)
	return len(op.Result.Interfaces) - 1
}

// open opens the sockets, with a namespace also one in that. It changes nothing.
func (p *Plugin) open(ctx context.Context, r *spec.Request, d Driver, ns *netns.NS) (op *Op, err error) {
	op = &Op{Request: r, Result: &spec.Result{}, NS: ns, plugin: p, facts: d.Facts(), ctx: ctx}
	op.Host, err = rtnl.OnHost(r.Call.Session)
	if err == nil && ns != nil {
		op.Cont, err = rtnl.In(r.Call.Session, ns)
	}
	return op, err
}

// openWithNS is open with the container's namespace, which ADD, CHECK, GET and RESTORE require.
func (p *Plugin) openWithNS(ctx context.Context, r *spec.Request, d Driver) (*Op, error) {
	ns, err := r.Call.OpenNS()
	if err != nil {
		return nil, err
	}
	return p.open(ctx, r, d, ns)
}

// openNSIfExists opens the container's namespace and a socket in it, if it exists.
func (op *Op) openNSIfExists() (err error) {
	if op.NS, err = op.Call.OpenNSIfExists(); err == nil && op.NS != nil {
		op.Cont, err = rtnl.In(op.Call.Session, op.NS)
	}
	return err
}
