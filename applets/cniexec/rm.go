package cniexec

import (
	"context"
	"errors"
	"os"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

func rmVerb() *verb {
	return &verb{name: "rm", group: "Repair", operands: "NETWORK", summary: "delete the bridge, rules and leases of a network", new: func(c *call) action { return &rmCall{call: c} },
		text: `It fails, and changes nothing, as long as something is attached or has a lease.
A bridge with another port, as that of another network, stays, with an error.
The configuration stays: the next add begins anew. What external plugins have
made for the network stays as well.`,
		examples: []example{
			{"cni-exec rm mynet", "when its last namespace is detached"},
			{"cni-exec gc mynet --all && cni-exec rm mynet", "whatever is attached"},
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
	l, err := c.load(c.target) // a network without a configuration is known by its attachments
	if err != nil {
		entries, _, _ := c.runner.Cache.List() // the error is that of the network
		v := inventory.Of(c.runner.Cache, c.describer(), entries)
		if _, unknown := v.Find(c.target.network); unknown == nil && errors.Is(err, os.ErrNotExist) {
			return 0, usage("rm: %q is a container: write `cni-exec del %s`", c.target.network, chain.Quoted(c.target.network))
		}
		return 0, err
	}
	removed := []string{}
	var use *chain.InUseError
	switch err = c.runner.RemoveNetwork(ctx, l); {
	case err == nil:
		removed = append(removed, l.Name)
	case errors.As(err, &use) && len(use.Entries) > 0:
		for _, e := range use.Entries {
			c.problem(c.target, "rm", withNetNS(e.Attachment(), e.NetNSPath(), spec.Errorf(spec.CodeBusy, "it is attached")))
		}
	default:
		c.problem(c.target, "rm", err)
	}
	return exitOK, c.document(ctx, rmDoc{removed, c.found()}, err)
}

// A rmDoc is the document of rm.
type rmDoc struct {
	Networks []string `json:"networks"` // removed ones
	findingsDoc
}
