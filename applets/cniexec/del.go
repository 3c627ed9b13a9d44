package cniexec

import (
	"context"
	"errors"

	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

func delVerb() *verb {
	return &verb{name: "del", group: "Attach", operands: "NETWORK NETNS | ID", summary: "detach a namespace from one network, or from all", new: func(c *call) action { return &delCall{call: c} },
		text: `The configuration and arguments of the add are used, unless others are given. ID
may be a name, as ls has it: all of its attachments, or that of -i, are deleted.
With NETWORK, an attachment that is gone is not an error.`,
		examples: []example{
			{"cni-exec del --delete mynet blue", "with the namespace, which may be gone already"},
			{"cni-exec del c1", "from all of its networks"},
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
	findingsDoc
}

func (c *delCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
	f.BoolVar(&c.delete, "delete", false, "delete the named namespace as well, with its last attachment")
	f.BoolVar(&c.keepGoing, "keep-going", false, "run all plugins even if one fails")
}

func (c *delCall) do(ctx context.Context, operands []string) (int, error) {
	switch {
	case len(operands) == 1 && operands[0] != "" && c.containerID == "":
		return c.delContainer(ctx, operands[0])
	case len(operands) == 0 && c.containerID != "":
		return c.delContainer(ctx, "")
	}
	err := c.networkOperands(operands, 2)
	switch {
	case err != nil:
	case c.delete && !sandbox.IsNamed(c.target.NetNS):
		err = errors.New("--delete needs the NAME of a network namespace, as add --create had it")
	default:
		err = c.link.needs(c.target)
	}
	if err != nil {
		return 0, usage("del: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.link.setTarget(&c.target)
	c.runner.KeepGoing = c.keepGoing
	l, err := c.load(c.target)
	if err != nil {
		return 0, err
	}
	doc := deletedDoc{[]attachmentName{}, []string{}, findingsDoc{}}
	err = c.del(ctx, l, &doc)
	if err != nil && spec.AsError(err).Code == spec.CodeEnv { // nothing was done
		return 0, err
	}
	c.problem(c.target, "del", err)
	doc.findingsDoc = c.found()
	return exitOK, c.document(ctx, doc, err)
}

// del runs DEL, and records what it deletes. Without -o json it prints nothing.
func (c *delCall) del(ctx context.Context, l *chain.List, doc *deletedDoc) error {
	a := c.target.attachment()
	netns := c.entryOf(a, c.target.NetNS).NetNSPath()
	if err := c.runner.Del(ctx, l, c.target.RuntimeConf); err != nil {
		return withNetNS(a, netns, err)
	}
	doc.Deleted = append(doc.Deleted, nameOf(a))
	if !c.delete {
		return nil
	}
	deleted, err := c.deleteUnused(ctx, netns)
	if deleted {
		doc.Namespaces = append(doc.Namespaces, netns)
	}
	return withNetNS(spec.Attachment{}, netns, err)
}

// delContainer detaches a container from all its networks, or the interface of --ifname. With a name there
// must be one; with --container-id alone nothing need be attached. An error does not stop it.
func (c *delCall) delContainer(ctx context.Context, name string) (int, error) {
	if err := c.prepare(); err != nil {
		return 0, err
	}
	var entries []*chain.Entry
	var err error
	if name != "" {
		entries, err = c.container(name)
	} else {
		c.about = c.containerID
		entries, err = c.entriesOf(c.containerID)
		entries = c.ofInterface(entries)
	}
	if err != nil {
		return 0, err
	}
	netns := ""
	if len(entries) > 0 {
		netns = entries[0].NetNSPath()
	}
	if c.delete && len(entries) > 0 && !sandbox.IsNamed(netns) {
		return 0, usage("del: --delete needs the NAME of a network namespace, as add --create had it")
	}
	c.runner.KeepGoing = c.keepGoing
	doc := deletedDoc{[]attachmentName{}, []string{}, findingsDoc{}}
	err = c.detachEntries(ctx, entries, func(e *chain.Entry) {
		c.summarize("%s: detached", e.Title())
		doc.Deleted = append(doc.Deleted, nameOf(e.Attachment()))
	})
	if c.delete && err == nil && len(entries) > 0 {
		var gone bool
		gone, err = c.deleteUnused(ctx, netns)
		if gone {
			doc.Namespaces = append(doc.Namespaces, netns)
		}
		err = withNetNS(spec.Attachment{}, netns, err)
	}
	c.problem(c.target, "del", err)
	doc.findingsDoc = c.found()
	return exitOK, c.document(ctx, doc, err)
}
