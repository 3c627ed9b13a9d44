package cniexec

import (
	"context"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
)

func statusVerb() *verb {
	return &verb{name: "status", group: "Attach", operands: "[NETWORK]", summary: "check that networks are ready for add", new: func(c *call) action { return &statusCall{call: c} },
		text: `The exit code says it: 0, or 1 with what is lacking on stderr.
Without NETWORK it is about every network that is configured.`,
		examples: []example{
			{"cni-exec status mynet", "ask each plugin of the network"},
			{"cni-exec status -o json", "every network, what is lacking as JSON"},
		},
	}
}

// A statusCall is one call of status.
type statusCall struct {
	*call
	all   bool
	asked []string // networks
}

func (c *statusCall) flags(f *flagSet) {
	f.BoolVar(&c.all, "all", false, "")
	f.former("all", "leave it out, status without NETWORK is about all")
}

func (c *statusCall) do(ctx context.Context, operands []string) (int, error) {
	c.all = c.all || len(operands) == 0
	if err := c.allOr(c.all, operands, 2); err != nil {
		return 0, usage("status: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.all {
		return exitOK, c.statusAll(ctx)
	}
	l, err := c.load(c.target)
	if err != nil {
		return 0, err
	}
	err = c.status(ctx, l)
	c.problem(c.target, "status", err)
	c.printReady(err)
	return exitOK, c.document(ctx, statusDoc{c.asked, c.found()}, err)
}

// A statusDoc is the document of status.
type statusDoc struct {
	Networks []string `json:"networks"` // that were asked
	findingsDoc
}

// status runs STATUS. Without -o json it prints nothing: the exit code is the answer.
func (c *statusCall) status(ctx context.Context, l *chain.List) error {
	c.asked = append(c.asked, l.Name)
	c.warnOf(l, true)
	return c.runner.Status(ctx, l)
}

// printReady says on a terminal that status has found nothing.
func (c *statusCall) printReady(err error) {
	if err == nil {
		c.nothing("ready: " + tty.Several(c.asked))
	}
}

// statusAll runs STATUS of every configured network.
func (c *statusCall) statusAll(ctx context.Context) error {
	names, err := c.networks(false)
	if err != nil {
		return err
	}
	err = c.eachList(ctx, names, c.status, "%d of %d networks are not ready")
	c.printReady(err)
	return c.document(ctx, statusDoc{notNull(c.asked), c.found()}, err)
}
