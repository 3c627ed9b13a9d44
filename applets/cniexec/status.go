package cniexec

import "context"

func statusVerb() *verb {
	return &verb{name: "status", operands: "NETWORK | --all", summary: "could add work now?", new: func(c *call) action { return &statusCall{call: c} },
		text: `The exit code says it: 0, or 1 with what is lacking on stderr.`,
		examples: []example{
			{"cni-exec status mynet", "ask each plugin of the network"},
			{"cni-exec status --all -o json", "every network; the error as JSON on stdout"},
		},
	}
}

// A statusCall is one call of status.
type statusCall struct {
	*call
	all bool
}

func (c *statusCall) flags(f *flagSet) {
	f.BoolVar(&c.all, "all", false, "every network that is configured")
}

func (c *statusCall) do(ctx context.Context, operands []string) (int, error) {
	if err := c.allOr(c.all, operands, 2); err != nil {
		return 0, usage("status: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.all {
		return exitOK, c.statusAll(ctx)
	}
	return exitOK, c.status(ctx)
}

// status runs STATUS; it prints nothing, the exit code is the answer.
func (c *statusCall) status(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	c.warnOf(l, true)
	return c.runner.Status(ctx, l)
}

// statusAll runs STATUS of every network that is configured.
func (c *statusCall) statusAll(ctx context.Context) error {
	names, err := c.networks(false)
	if err != nil {
		return err
	}
	return c.eachNetwork(ctx, names, c.status, "%d of %d networks are not ready")
}
