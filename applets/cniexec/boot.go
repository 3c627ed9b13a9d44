package cniexec

import (
	"context"
	"errors"
	"fmt"
)

// boot deletes what earlier boots have left, attachments and leases, makes the bridges of all networks, and says so in
// one line.
func (c *call) boot(ctx context.Context, operands []string) (int, error) {
	if len(operands) > 0 {
		return 0, usage("boot: %q is one operand too many: it is done for all networks", operands[0])
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	deleted, err := c.runner.DeleteEarlier(ctx)
	errs := []error{err}
	names := c.configured()
	ready := 0
	failed := c.eachNetwork(ctx, names, func(ctx context.Context) error {
		l, err := c.lookup(c.network)
		if err != nil {
			return err
		}
		shares, err := c.runner.Prepare(ctx, l)
		if shares && err == nil {
			ready++
		}
		return err
	})
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d networks could not be prepared", failed, len(names)))
	}
	c.summarize("%s of earlier boots deleted, bridges of %s there", attachments(len(deleted)), plural(ready, "network"))
	return 0, errors.Join(append(errs, context.Cause(ctx))...)
}
