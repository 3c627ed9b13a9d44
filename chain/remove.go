package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// RemoveNetwork deletes the stale attachments of a network, and what its plugins have made for all
// attachments, such as its bridge and the directory of its leases. No ADD or DEL of the network
// runs meanwhile. The error has code 100, and nothing has changed, if an attachment may be alive.
//
// What an external plugin has made stays: the specification has no verb for it.
func (r *Runner) RemoveNetwork(ctx context.Context, l *List) error {
	if err := spec.CheckNetworkName(l.Name); err != nil {
		return err
	}
	v, err := l.version()
	if err != nil {
		return err
	}
	unlock, err := r.Cache.lockNetwork(ctx, l.Name, true)
	if err != nil {
		return err
	}
	defer unlock()
	r = r.Once()
	stale, err := r.unused(l.Name)
	if err != nil {
		return err
	}
	if _, err := r.deleteAll(ctx, stale, l); err != nil {
		return err
	}
	// In reverse order, as in DEL; the IPAM plugin first, since it fails while it has leases.
	for _, p := range slices.Backward(l.Plugins) {
		for _, plugin := range []string{p.IPAM, p.Type} {
			if err := r.removeNetwork(ctx, l, &p, plugin); err != nil {
				return err
			}
		}
	}
	if v.AtLeast(spec.V110) && !l.DisableGC { // deletes rules that have no attachment
		if err := errors.Join(r.gcAll(ctx, l, nil)...); err != nil {
			return err
		}
	}
	return cacheError(disk.Remove(r.Cache.lockFile("network", l.Name))) // the last step under the lock
}

// An InUseError says that a network cannot be removed. It has the attachments that may be alive;
// none: an unreadable entry may be one.
type InUseError struct{ Entries []*Entry }

// Error returns a text for errors that wrap this one, and that name the attachments.
func (*InUseError) Error() string { return "it is in use" }

// unused returns the entries of a network that has no attachment alive. The error has code 100 if one
// may be alive.
func (r *Runner) unused(network string) (stale []*Entry, err error) {
	entries, broken, err := r.Cache.List()
	if err != nil {
		return nil, err
	}
	var live []string
	use := new(InUseError)
	for _, e := range entries {
		switch {
		case e.NetworkName != network:
		case e.Attached():
			live = append(live, fmt.Sprintf("%s of container %s (namespace %s)", e.IfName, e.Name(), e.NetNSPath()))
			use.Entries = append(use.Entries, e)
		default:
			stale = append(stale, e)
		}
	}
	for _, b := range broken {
		if b.mayBeOf(network) {
			live = append(live, b.Err().Error())
		}
	}
	if len(live) > 0 {
		const most = 5
		if more := len(live) - most; more > 0 {
			live = append(live[:most], fmt.Sprintf("and %d more", more))
		}
		err := spec.Errorf(spec.CodeBusy, "network %s is in use", network).WithDetails("%s", strings.Join(live, "\n"))
		err.Err = use
		return nil, err
	}
	return stale, nil
}

// removeNetwork runs RemoveNetwork of a plugin that has one; plugin may be empty.
func (r *Runner) removeNetwork(ctx context.Context, l *List, p *Plugin, plugin string) error {
	if plugin == "" {
		return nil
	}
	builtIn, err := r.Invoker.Find(plugin)
	if err != nil || builtIn == nil || builtIn.RemoveNetwork == nil {
		return err
	}
	req, err := r.request(spec.GC, l, p, RuntimeConf{}, []map[string]any{spec.ValidMembers(nil)})
	if err == nil {
		err = builtIn.RemoveNetwork(ctx, req)
	}
	if err != nil {
		return fmt.Errorf("plugin type=%q name=%q: %w", plugin, l.Name, err)
	}
	return nil
}
