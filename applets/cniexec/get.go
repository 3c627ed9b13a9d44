package cniexec

import (
	"cmp"
	"context"
)

func getVerb() *verb {
	return &verb{name: "get", group: "Attach", operands: "NETWORK NETNS | ID", summary: "print the result of add again", new: func(c *call) action { return &getCall{call: c} },
		text: `It is compared with what the plugins know of the attachment. ID may be a name,
as ls has it; -i names one of its interfaces.`,
		examples: []example{
			{"cni-exec get mynet /run/netns/blue", "what add printed"},
			{"cni-exec get c1 -i net1", "of another interface"},
		},
	}
}

// A getCall is one call of get.
type getCall struct {
	*call
	link
}

func (c *getCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
}

func (c *getCall) do(ctx context.Context, operands []string) (int, error) {
	if len(operands) == 1 && operands[0] != "" && c.containerID == "" {
		return exitOK, c.getContainer(ctx, operands[0])
	}
	if err := cmp.Or(c.networkOperands(operands, 2), c.link.needs(c.target)); err != nil {
		return 0, usage("get: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.link.setTarget(&c.target)
	return exitOK, c.get(ctx)
}

// getContainer is get for the only attachment of a container, or that of --ifname.
func (c *getCall) getContainer(ctx context.Context, name string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	entries, err := c.container(name)
	if err != nil {
		return err
	}
	if len(entries) > 1 {
		return usage("get: %s has several attachments: %s: name one with -i, or with NETWORK NETNS", name, attachmentsText(entries))
	}
	e := entries[0]
	c.target.network, c.target.ContainerID, c.target.IfName = e.NetworkName, e.ContainerID, e.IfName
	return c.get(ctx)
}

// get prints the result that add has printed.
func (c *getCall) get(ctx context.Context) error {
	l, err := c.load(c.target)
	if err != nil {
		return err
	}
	res, err := c.runner.Get(ctx, l, c.target.RuntimeConf)
	if err != nil {
		return err
	}
	return c.print(l, res)
}
