package cniexec

import (
	"context"
	"errors"

	"cnibox/applets/cniexec/sandbox"
)

func delVerb() *verb {
	return &verb{name: "del", operands: "NETWORK NETNS", summary: "detach; no error if it is gone", new: func(c *call) action { return &delCall{call: c} },
		text: `The configuration and arguments of the add are used, unless others are given.`,
		examples: []example{
			{"cni-exec del --delete mynet blue", "with the namespace, which may be gone already"},
			{"cni-exec del mynet --container-id c1 --keep-going", "run all plugins even if one fails"},
		},
	}
}

// A delCall is one call of del.
type delCall struct {
	*call
	link
	delete    bool // the named namespace
	keepGoing bool
}

func (c *delCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
	f.BoolVar(&c.delete, "delete", false, "delete the named namespace as well, with its last attachment")
	f.BoolVar(&c.keepGoing, "keep-going", false, "run all plugins even if one fails")
}

func (c *delCall) do(ctx context.Context, operands []string) (int, error) {
	err := c.networkOperands(operands, 2)
	switch {
	case err != nil:
	case c.delete && !sandbox.IsNamed(c.target.NetNS):
		err = errors.New("--delete needs the NAME of a network namespace, as add --create had it")
	default:
		err = c.link.needs(&c.target)
	}
	if err != nil {
		return 0, usage("del: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.link.aim(&c.target)
	c.runner.KeepGoing = c.keepGoing
	return exitOK, c.del(ctx)
}

// del runs DEL; it prints nothing.
func (c *delCall) del(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	if err = c.runner.Del(ctx, l, c.target); err != nil || !c.delete {
		return err
	}
	return c.names().DeleteUnused(ctx, c.target.NetNS)
}
