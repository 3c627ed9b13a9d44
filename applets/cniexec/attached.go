package cniexec

import (
	"context"

	"github.com/cnibox/cnibox/chain"
)

// createNetNS creates a named namespace, unless it exists. Before that it deletes those of its
// container's attachments that are to a former namespace of that name, and returns them.
func (c *call) createNetNS(ctx context.Context, path string, entries func() ([]*chain.Entry, error)) (created bool, left []*chain.Entry, err error) {
	created, err = c.names().Create(ctx, path, func() error {
		all, err := entries()
		left = c.detachGone(ctx, path, all)
		return err
	})
	return created, left, err
}

// detachGone deletes a container's attachments to a namespace that is gone. If one cannot be
// deleted, it reports that, and counts it as deleted.
func (c *call) detachGone(ctx context.Context, path string, entries []*chain.Entry) (left []*chain.Entry) {
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
	return left
}

// entriesByContainer returns all attachments by the IDs of their containers.
func (c *call) entriesByContainer() (map[string][]*chain.Entry, error) {
	entries, _, err := c.runner.Cache.List()
	all := map[string][]*chain.Entry{}
	for _, e := range entries {
		all[e.ContainerID] = append(all[e.ContainerID], e)
	}
	return all, err
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
		l, err = c.lookup(e.NetworkName)
		c.speak(l)
		if err != nil {
			return err
		}
	}
	return c.runner.Del(ctx, l, chain.RuntimeConf{ContainerID: e.ContainerID, IfName: e.IfName})
}
