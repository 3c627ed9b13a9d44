package cniexec

import (
	"context"

	"cnibox/chain"
)

// createNetNS makes a named namespace, unless it is there already. The container's attachments to
// one that had the name are deleted before, and returned.
func (c *call) createNetNS(ctx context.Context, path, containerID string) (created bool, left []*chain.Entry, err error) {
	created, err = c.names().Create(ctx, path, func() (err error) {
		left, err = c.detachGone(ctx, path, containerID)
		return err
	})
	return created, left, err
}

// detachGone deletes a container's attachments to a namespace that is gone. What cannot be deleted is
// reported, and counts as deleted.
func (c *call) detachGone(ctx context.Context, path, containerID string) (left []*chain.Entry, err error) {
	entries, err := c.entriesOf(containerID)
	for _, e := range entries {
		if e.NetNSPath() != path {
			continue
		}
		left = append(left, e)
		c.runner.Warn("%s: deleting what an earlier ADD left", e.Title())
		if err := c.detachEntry(ctx, e); err != nil {
			c.runner.Warn("%s: leftovers of an earlier ADD: %v", e.Title(), err)
		}
	}
	return left, err
}

// entriesOf returns the attachments of a container.
func (c *call) entriesOf(containerID string) (found []*chain.Entry, err error) {
	entries, _, err := c.runner.Cache.List()
	for _, e := range entries {
		if e.ContainerID == containerID {
			found = append(found, e)
		}
	}
	return found, err
}

// detachEntry deletes an attachment with the configuration and the arguments of its ADD.
func (c *call) detachEntry(ctx context.Context, e *chain.Entry) error {
	l, err := e.List()
	if err != nil {
		if l, err = c.lookup(e.NetworkName); err != nil {
			return err
		}
	}
	return c.runner.Del(ctx, l, chain.Target{ContainerID: e.ContainerID, IfName: e.IfName})
}
