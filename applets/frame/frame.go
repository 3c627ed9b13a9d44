// Package frame is what attach, the flow of interface plugins, and chained, that of chained plugins,
// have in common: how a configuration is read, and what a step of a plugin works on. The order of
// each verb is theirs.
package frame

import (
	"context"
	"errors"
	"os"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/undo"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Op is one verb on one attachment. Its namespace and sockets are those of the session.
type Op struct {
	*spec.Request
	NS   *netns.NS  // of the container; nil: missing, gone, or not opened
	Cont *rtnl.Conn // in NS; nil when NS is
	Link *rtnl.Link // CNI_IFNAME in NS; nil: missing, gone, or not created yet

	ctx  context.Context
	undo undo.Stack
}

// New returns the Op of a verb, with nothing opened.
func New(ctx context.Context, r *spec.Request) Op { return Op{Request: r, ctx: ctx} }

// Context returns the verb's context.
func (op *Op) Context() context.Context { return op.ctx }

// Restoring reports whether the verb is RESTORE.
func (op *Op) Restoring() bool { return op.Call.Verb == spec.Restore }

// Rules returns the tables of this program on the host.
func (op *Op) Rules() *nft.Table { return nft.In(op.Call.Session) }

// OnHost returns the session's socket on the host.
func (op *Op) OnHost() (*rtnl.Conn, error) { return rtnl.OnHost(op.Call.Session) }

// OpenNS opens the container's namespace and a socket in it.
func (op *Op) OpenNS() error { return op.enter(op.Call.OpenNS()) }

// OpenNSIfExists is OpenNS for DEL: a missing namespace is not an error.
func (op *Op) OpenNSIfExists() error { return op.enter(op.Call.OpenNSIfExists()) }

func (op *Op) enter(ns *netns.NS, err error) error {
	if op.NS = ns; err == nil && ns != nil {
		op.Cont, err = rtnl.In(op.Call.Session, ns)
	}
	return err
}

// OpenLink opens the namespace and finds the interface. missingCode is the code of the error for a
// missing one; 0, for DEL: it is not an error.
func (op *Op) OpenLink(missingCode int) error {
	open := op.OpenNS
	if missingCode == 0 {
		open = op.OpenNSIfExists
	}
	if err := open(); err != nil || op.NS == nil {
		return err
	}
	link, err := op.Cont.Link(op.IfName)
	switch {
	case err == nil:
		op.Link = link
	case !errors.Is(err, os.ErrNotExist):
		return err
	case missingCode != 0:
		return spec.Errorf(missingCode, "%w in %s", err, op.Call.NetNS)
	}
	return nil
}

// Undo registers the undo of a change that was just made, or is about to be tried: see
// [undo.Stack.Add].
func (op *Op) Undo(what string, fn func(context.Context) error) { op.undo.Add(what, fn) }

// Failed undoes all changes if the verb has failed, and returns its error: see [undo.Stack.Failed].
func (op *Op) Failed(err error) error { return op.undo.Failed(op.ctx, err) }

// Read decodes a configuration into the plugin's struct, whose exported fields are the keys, and
// checks it. Errors without a code have code 7.
func Read(r *spec.Request, conf interface{ Validate(*spec.Request) error }) error {
	if err := r.Decode(conf); err != nil {
		return err
	}
	if err := conf.Validate(r); err != nil {
		return spec.Invalid(err, "type")
	}
	return nil
}
