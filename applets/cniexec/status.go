package cniexec

import "context"

// statusVerb is the declaration of status.
func statusVerb() *verb {
	return &verb{name: "status", operands: "NETWORK | --all", summary: "could add work now?", do: attachment(onAll((*call).statusAll, (*call).status)),
		text: `The exit code says it: 0, or 1 with what is lacking on stderr.`,
		examples: []example{
			{"cni-exec status mynet", "ask each plugin of the network"},
			{"cni-exec status --all -o json", "every network; the error as JSON on stdout"},
		},
		flags: func(f *flagSet) {
			f.BoolVar(&f.all, "all", false, "every network that is configured")
		},
	}
}

// status runs STATUS; it prints nothing, the exit code is the answer.
func (c *call) status(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	c.warnOf(l)
	return c.runner.Status(ctx, l)
}

// statusAll runs STATUS of every network that is configured.
func (c *call) statusAll(ctx context.Context) error {
	names, err := c.networks(false)
	if err != nil {
		return err
	}
	return c.eachNetwork(ctx, names, c.status, "%d of %d networks are not ready")
}
