package cniexec

import (
	"cmp"
	"context"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func bootVerb() *verb {
	return &verb{name: "boot", instead: "reload", new: func(c *call) action { return &bootCall{call: c} }}
}

// A bootCall is one call of boot.
type bootCall struct {
	*call
}

func (*bootCall) flags(*flagSet) {}

// do deletes attachments and leases of earlier boots, creates the bridges of all networks, and
// prints one line about that.
func (c *bootCall) do(ctx context.Context, operands []string) (int, error) {
	if err := c.tooMany(operands, 0); err != nil {
		return 0, err
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	deleted, failed := c.deleteEarlier(ctx)
	ready, err := c.makeBridges(ctx)
	c.summarize("%s, %s", earlierText(deleted), bridgesText(ready))
	if failed != nil && err != nil {
		c.runner.Warn("boot: %v", hint.Line(failed))
	}
	return 0, c.document(ctx, bootDoc{each(deleted, nameOf), ready, c.found()}, cmp.Or(context.Cause(ctx), err, failed))
}

// deleteEarlier deletes the attachments of earlier boots.
func (c *call) deleteEarlier(ctx context.Context) ([]spec.Attachment, error) {
	deleted, err := c.runner.DeleteEarlier(ctx, c.elsewhere)
	c.problem(target{}, c.verb, err)
	return deleted, err
}

func earlierText(deleted []spec.Attachment) string {
	return tty.Plural(len(deleted), "attachment") + " of earlier boots deleted"
}

func bridgesText(ready []string) string {
	return "bridges of " + tty.Plural(len(ready), "network") + " there"
}

// makeBridges makes the bridges of all configured networks, and deletes their leases of earlier boots.
// It returns the networks whose bridge exists.
func (c *call) makeBridges(ctx context.Context) (ready []string, err error) {
	ready = []string{}
	err = c.eachNetwork(ctx, c.configured(), func(ctx context.Context, network string) error {
		l, err := c.lookup(network)
		c.speak(l)
		if err != nil {
			return err
		}
		shares, err := c.runner.Prepare(ctx, l)
		if shares && err == nil {
			ready = append(ready, l.Name)
		}
		return err
	}, "%d of %d networks could not be prepared")
	return ready, err
}

// elsewhere returns the entries whose namespaces may exist, though not at their paths.
func (c *call) elsewhere(entries []*chain.Entry) (kept []*chain.Entry) {
	list := each(entries, inventory.Empty(c.runner.Cache, c.describer()).Read)
	at, hidden, err := inventory.Elsewhere(list)
	if err != nil {
		c.runner.Warn("%s: %v", c.verb, err)
	}
	for _, a := range list {
		if err != nil || hidden != (rtnl.Hidden{}) || at[a] != "" {
			kept = append(kept, a.Entry)
		}
	}
	return kept
}

// A bootDoc is the document of boot.
type bootDoc struct {
	Deleted []attachmentName `json:"deleted"` // of earlier boots
	Bridges []string         `json:"bridges"` // networks whose bridge exists
	findingsDoc
}
