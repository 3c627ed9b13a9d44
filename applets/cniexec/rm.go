package cniexec

import "context"

func rmVerb() *verb {
	return &verb{name: "rm", operands: "NETWORK", summary: "delete the bridge, rules and leases of a network", new: func(c *call) action { return &rmCall{call: c} },
		text: `It fails, and changes nothing, as long as something is attached or has a lease.
A bridge with another port, as that of another network, stays, with an error.
The configuration stays: the next add begins anew. What external plugins have
made for the network stays as well.`,
		examples: []example{
			{"cni-exec rm mynet", "when its last namespace is detached"},
			{"cni-exec gc mynet --keep-none && cni-exec rm mynet", "whatever is attached"},
		},
	}
}

// A rmCall is one call of rm.
type rmCall struct {
	*call
}

func (*rmCall) flags(*flagSet) {}

func (c *rmCall) do(ctx context.Context, operands []string) (int, error) {
	if err := c.networkOperands(operands, 1); err != nil {
		return 0, usage("rm: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	return exitOK, c.rm(ctx)
}

// rm deletes what is left of a network that nothing is attached to. Its configuration stays; a
// network that has none any more is known by its attachments.
func (c *rmCall) rm(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	return c.runner.RemoveNetwork(ctx, l)
}
