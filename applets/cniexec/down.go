package cniexec

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
)

func downVerb() *verb {
	return &verb{name: "down", group: "Run", operands: "FILE", summary: "detach and delete the namespaces of a file", new: func(c *call) action { return &downCall{call: c} },
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
	f, err := c.readFile(operands)
	if err != nil {
		return 0, err
	}
	c.about = f.File
	unlock, err := c.lockFile(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	c.runner.KeepGoing = true
	entries, err := c.entriesByContainer()
	if err != nil {
		return 0, err
	}
	doc := deletedDoc{[]attachmentName{}, []string{}, findingsDoc{}}
	detach := func(name string) error { return c.detachAll(ctx, name, entries, &doc) }
	remove := func(names []string, failed func(string, error)) {
		attached, err := c.names().Attached()
		eachName(ctx, func(name string) error {
			if err != nil {
				return err
			}
			return c.deleteNetNS(ctx, name, attached, &doc)
		})(names, failed)
	}
	err = c.eachNamespace(ctx, f.Names(), eachName(ctx, detach), remove)
	doc.findingsDoc = c.found()
	return exitOK, c.document(ctx, doc, err)
}

// detachAll detaches a namespace, and records that. After an error the namespace stays, since the
// next try needs it.
func (c *downCall) detachAll(ctx context.Context, name string, all map[string][]*chain.Entry, doc *deletedDoc) error {
	entries := all[chain.DerivedID(filepath.Join(sandbox.NetNSDir, name))]
	var errs []error
	for _, e := range slices.Backward(entries) {
		err := c.detachEntry(ctx, e)
		if err == nil {
			c.summarize("%s: %s detached from %s", name, e.IfName, e.NetworkName)
			doc.Deleted = append(doc.Deleted, nameOf(e.Attachment()))
		}
		errs = append(errs, withNetNS(e.Attachment(), e.NetNSPath(), err))
	}
	return errors.Join(errs...)
}

// deleteNetNS deletes a namespace, and records that.
func (c *downCall) deleteNetNS(ctx context.Context, name string, attached sandbox.Attached, doc *deletedDoc) error {
	path := filepath.Join(sandbox.NetNSDir, name)
	deleted, err := c.deleteUnless(ctx, path, attached)
	if deleted {
		c.summarize("%s: deleted", name)
		doc.Namespaces = append(doc.Namespaces, path)
	}
	return err
}
