package cniexec

import "context"

// rm deletes what is left of a network that nothing is attached to. Its configuration stays; a
// network that has none any more is known by its attachments.
func (c *call) rm(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	return c.runner.RemoveNetwork(ctx, l)
}
