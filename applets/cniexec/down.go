package cniexec

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"cnibox/applets/cniexec/sandbox"
)

func downVerb() *verb {
	return &verb{name: "down", operands: "FILE", summary: "detach and delete the namespaces of a file", new: func(c *call) action { return &downCall{call: c} },
		text: `All that add and up have attached to them is detached. Networks stay: see rm.`,
		examples: []example{
			{"cni-exec down /etc/cni/netns/web.json", "no error if they are gone"},
			{"cni-exec down web.json && cni-exec rm mynet", "with the bridge"},
		},
	}
}

// A downCall is one call of down.
type downCall struct {
	*call
}

func (*downCall) flags(*flagSet) {}

// do detaches and deletes the namespaces of a file, with what add has attached to them. An error
// does not stop it. A missing namespace is not an error.
func (c *downCall) do(ctx context.Context, operands []string) (int, error) {
	s, err := c.stateOperand(operands)
	if err != nil {
		return 0, err
	}
	c.about = s.File
	unlock, err := c.lockState(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	c.runner.KeepGoing = true
	doc := deletedDoc{[]attachmentName{}, []string{}, foundDoc{}}
	err = c.eachNamespace(ctx, s, func(name string) error { return c.downOne(ctx, name, &doc) })
	doc.foundDoc = c.found()
	return exitOK, c.report(ctx, doc, err)
}

// downOne is down for one namespace; it records what it deletes.
func (c *downCall) downOne(ctx context.Context, name string, doc *deletedDoc) error {
	path := filepath.Join(sandbox.NetNSDir, name)
	entries, err := c.entriesOf(derivedID(path))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range slices.Backward(entries) {
		err := c.detachEntry(ctx, e)
		if err == nil {
			c.summarize("%s: %s detached from %s", name, e.IfName, e.NetworkName)
			doc.Deleted = append(doc.Deleted, nameOf(e.Attachment()))
		}
		errs = append(errs, ofNetNS(e.Attachment(), e.NetNSPath(), err))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the next try needs the namespace
	}
	deleted, err := c.deleteUnused(ctx, path)
	if deleted {
		c.summarize("%s: deleted", name)
		doc.Namespaces = append(doc.Namespaces, path)
	}
	return err
}
