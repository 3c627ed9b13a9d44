package cniexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// entriesNamed returns the entries of a network, or of a container as show names it, all entries, and
// the errors about files that are none. An unreadable entry is an error, since it may be one of them.
func (c *call) entriesNamed(name string) (named, all []*chain.Entry, torn []error, err error) {
	all, torn, err = c.runner.Entries()
	if err != nil {
		return nil, nil, nil, err
	}
	v := inventory.Of(c.runner.Cache, c.describer(), all)
	_, found, err := v.ByName(name, c.knownNetworks(v))
	return entriesIn(found), all, torn, err
}

// container returns the entries of a container, as show names it, without those that --ifname leaves
// out. A name that is also, or only, that of a network is an error in the command line.
func (c *call) container(name string) ([]*chain.Entry, error) {
	c.about = name
	entries, _, err := c.runner.Entries()
	if err != nil {
		return nil, err
	}
	v := inventory.Of(c.runner.Cache, c.describer(), entries)
	found, err := v.Find(name)
	if slices.ContainsFunc(c.knownNetworks(v), func(n *inventory.Network) bool { return n.Name == name }) {
		if err == nil {
			return nil, usage("%s: %q is a container and a network: name the attachment with NETWORK too, as `%s`", c.verb, name, strings.Replace(found[0].DelCommand(), " del ", " "+c.verb+" ", 1))
		}
		return nil, usage("%s: NETNS is missing: %q is a network, and without NETNS %s takes a container", c.verb, name, c.verb)
	}
	if err != nil {
		return nil, err
	}
	all := entriesIn(found)
	if entries = c.ofInterface(all); len(entries) == 0 {
		return nil, spec.Errorf(spec.CodeUnknown, "it has no attachment with this interface, but: %s", attachmentsText(all))
	}
	return entries, nil
}

// ofInterface returns the entries of the interface that --ifname names; all if it is not given.
func (o *options) ofInterface(entries []*chain.Entry) []*chain.Entry {
	name := o.set.Lookup("ifname")
	if !name.Changed {
		return entries
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e *chain.Entry) bool { return e.IfName != name.Value.String() })
}

// attachmentsText lists attachments of a container.
func attachmentsText(list []*chain.Entry) string {
	return strings.Join(each(list, func(e *chain.Entry) string { return e.NetworkName + " " + e.IfName }), ", ")
}

func entriesIn(list []*inventory.Entry) []*chain.Entry {
	return each(list, func(a *inventory.Entry) *chain.Entry { return a.Entry })
}

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

// detachEntries detaches a container's attachments, the last one first, and goes on after failures. It calls done for
// each one that is detached.
func (c *call) detachEntries(ctx context.Context, entries []*chain.Entry, done func(*chain.Entry)) error {
	slices.SortStableFunc(entries, func(a, b *chain.Entry) int { return b.Written().Compare(a.Written()) })
	var errs []error
	for _, e := range entries {
		if err := c.detachEntry(ctx, e); err != nil {
			errs = append(errs, withNetNS(e.Attachment(), e.NetNSPath(), fmt.Errorf("%s: %w", e.Title(), err)))
			continue
		}
		done(e)
	}
	return errors.Join(errs...)
}

// deleteUnused deletes a named namespace that has no attachments. A missing namespace is not an
// error.
func (c *call) deleteUnused(ctx context.Context, path string) (deleted bool, err error) {
	attached, err := c.names().Attached()
	if err != nil {
		return false, err
	}
	return c.deleteUnless(ctx, path, attached)
}

// deleteUnless is deleteUnused with the attachments of all namespaces.
func (c *call) deleteUnless(ctx context.Context, path string, attached sandbox.Attached) (deleted bool, err error) {
	_, missing := os.Lstat(path)
	err = c.names().DeleteUnused(ctx, path, attached)
	_, gone := os.Lstat(path)
	return err == nil && missing == nil && gone != nil, err
}
