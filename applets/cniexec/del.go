package cniexec

import (
	"context"
	"errors"
	"os"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/chain"
	"cnibox/spec"
)

func delVerb() *verb {
	return &verb{name: "del", operands: "NETWORK NETNS", summary: "detach; no error if it is gone", new: func(c *call) action { return &delCall{call: c} },
		text: `The configuration and arguments of the add are used, unless others are given.
Without NETWORK and NETNS, --container-id detaches the container from all
networks.`,
		examples: []example{
			{"cni-exec del --delete mynet blue", "with the namespace, which may be gone already"},
			{"cni-exec del --container-id c1 --keep-going", "from all networks, even if a plugin fails"},
		},
	}
}

// A delCall is one call of del.
type delCall struct {
	*call
	link
	delete    bool // the named namespace
	keepGoing bool
}

// A deletedDoc is the document of del and down.
type deletedDoc struct {
	Deleted    []attachmentName `json:"deleted"`
	Namespaces []string         `json:"namespaces"` // paths of deleted ones
	foundDoc
}

func (c *delCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
	f.BoolVar(&c.delete, "delete", false, "delete the named namespace as well, with its last attachment")
	f.BoolVar(&c.keepGoing, "keep-going", false, "run all plugins even if one fails")
}

func (c *delCall) do(ctx context.Context, operands []string) (int, error) {
	if len(operands) == 0 && c.containerID != "" {
		return c.delContainer(ctx)
	}
	err := c.networkOperands(operands, 2)
	switch {
	case err != nil:
	case c.delete && !sandbox.IsNamed(c.runtimeConf.NetNS):
		err = errors.New("--delete needs the NAME of a network namespace, as add --create had it")
	default:
		err = c.link.needs(&c.runtimeConf)
	}
	if err != nil {
		return 0, usage("del: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.link.setTarget(&c.runtimeConf)
	c.runner.KeepGoing = c.keepGoing
	l, err := c.load()
	if err != nil {
		return 0, err
	}
	doc := deletedDoc{[]attachmentName{}, []string{}, foundDoc{}}
	err = c.del(ctx, l, &doc)
	if err != nil && spec.AsError(err).Code == spec.CodeEnv { // nothing was done
		return 0, err
	}
	c.problem("del", err)
	doc.foundDoc = c.found()
	return exitOK, c.report(ctx, doc, err)
}

// delContainer detaches the container from all networks. It is not an error if there are none.
func (c *delCall) delContainer(ctx context.Context) (int, error) {
	switch {
	case c.delete:
		return 0, usage("del: --delete needs NETWORK and the NAME of a network namespace")
	case c.set.Changed("ifname"):
		return 0, usage("del: --ifname needs NETWORK: without it all attachments of the container are deleted")
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.about = c.containerID
	deleted, err := c.detachContainer(ctx, c.containerID, c.keepGoing)
	c.problem("del", err)
	doc := deletedDoc{each(deleted, nameOf), []string{}, c.found()}
	return exitOK, c.report(ctx, doc, err)
}

// del runs DEL, and records what it deletes. Without -o json it prints nothing.
func (c *delCall) del(ctx context.Context, l *chain.List, doc *deletedDoc) error {
	a := c.target()
	netns := c.entryOf(a, c.runtimeConf.NetNS).NetNSPath()
	if err := c.runner.Del(ctx, l, c.runtimeConf); err != nil {
		return ofNetNS(a, netns, err)
	}
	doc.Deleted = append(doc.Deleted, nameOf(a))
	if !c.delete {
		return nil
	}
	deleted, err := c.deleteUnused(ctx, netns)
	if deleted {
		doc.Namespaces = append(doc.Namespaces, netns)
	}
	return ofNetNS(spec.Attachment{}, netns, err)
}

// deleteUnused deletes a named namespace that has no attachments. A missing namespace is not an
// error.
func (c *call) deleteUnused(ctx context.Context, path string) (deleted bool, err error) {
	attached, err := c.names().Attached()
	if err != nil {
		return false, err
	}
	return c.deleteUnless(ctx, path, attached)
}

// deleteUnless is deleteUnused with the attachments of all namespaces.
func (c *call) deleteUnless(ctx context.Context, path string, attached sandbox.Attached) (deleted bool, err error) {
	_, missing := os.Lstat(path)
	err = c.names().DeleteUnused(ctx, path, attached)
	_, gone := os.Lstat(path)
	return err == nil && missing == nil && gone != nil, err
}
