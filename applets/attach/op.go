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

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Op is one verb on one attachment. Links are looked up by name once, then by index.
type Op struct {
	frame.Op
	Host      *rtnl.Conn // the session's socket on the host
	Result    *spec.Result
	Veth      *rtnl.Link // the peer of op.Link on the host, of a plugin that makes a pair
	Bridge    *rtnl.Link // the bridge that Veth is a port of; nil: none
	PCIID     string     // of the container's device, where known
	Container int        // index of the container's link in Result.Interfaces

	plugin    *Plugin
	resources spec.Resources
	newVeth   bool // Veth is new
}

// AddInterface enters an interface into the result and returns its index.
func (op *Op) AddInterface(i spec.Interface) int {
	op.Result.Interfaces = append(op.Result.Interfaces, i)
	return len(op.Result.Interfaces) - 1
}

// open opens the socket on the host. It changes nothing.
func (p *Plugin) open(ctx context.Context, r *spec.Request, d Driver) (op *Op, err error) {
	op = &Op{Op: frame.New(ctx, r), Result: &spec.Result{}, plugin: p, resources: d.Resources()}
	op.Host, err = op.OnHost()
	return op, err
}

// openWithNS is open with the container's namespace, which ADD, CHECK, GET and RESTORE require.
func (p *Plugin) openWithNS(ctx context.Context, r *spec.Request, d Driver) (*Op, error) {
	op, err := p.open(ctx, r, d)
	if err == nil {
		err = op.OpenNS()
	}
	return op, err
}
