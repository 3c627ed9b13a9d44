package cniexec

import (
	"cmp"
	"context"

	"cnibox/applets/cniexec/hint"
	"cnibox/applets/cniexec/inventory"
	"cnibox/chain"
	"cnibox/internal/tty"
	"cnibox/rtnl"
)

func bootVerb() *verb {
	return &verb{name: "boot", operands: "", summary: "clean up after a reboot, and make the bridges", new: func(c *call) action { return &bootCall{call: c} },
		text: `Attachments and leases of earlier boots are deleted, on all networks, and the
bridges of all configured networks made, with the gateways' addresses. It may be
run at any time: what is alive stays.`,
		examples: []example{
			{"cni-exec boot", "once at each boot, before containers are started"},
			{"cni-exec boot --conf-dir /etc/mynets", "networks of another directory"},
		},
	}
}

// A bootCall is one call of boot.
type bootCall struct {
	*call
}

func (*bootCall) flags(*flagSet) {}

// do deletes attachments and leases of earlier boots, creates the bridges of all networks, and
// prints one line about that.
func (c *bootCall) do(ctx context.Context, operands []string) (int, error) {
	if len(operands) > 0 {
		return 0, usage("boot: %q is one operand too many: it is done for all networks", operands[0])
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	deleted, failed := c.runner.DeleteEarlier(ctx, c.elsewhere)
	c.problem("boot", failed)
	ready := []string{}
	err := c.eachNetwork(ctx, c.configured(), func(ctx context.Context) error {
		l, err := c.lookup(c.network)
		if err != nil {
			return err
		}
		shares, err := c.runner.Prepare(ctx, l)
		if shares && err == nil {
			ready = append(ready, l.Name)
		}
		return err
	}, "%d of %d networks could not be prepared")
	c.summarize("%s of earlier boots deleted, bridges of %s there", tty.Plural(len(deleted), "attachment"), tty.Plural(len(ready), "network"))
	if failed != nil && err != nil {
		c.runner.Warn("boot: %v", hint.Line(failed))
	}
	return 0, c.report(ctx, bootDoc{each(deleted, nameOf), ready, c.found()}, cmp.Or(context.Cause(ctx), err, failed))
}

// elsewhere returns the entries whose namespaces may exist, though not at their paths.
func (c *bootCall) elsewhere(entries []*chain.Entry) (kept []*chain.Entry) {
	list := each(entries, inventory.Empty(c.runner.Cache, c.describer()).Read)
	at, hidden, err := inventory.Elsewhere(list)
	if err != nil {
		c.runner.Warn("boot: %v", err)
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
	foundDoc
}
