package cniexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/internal/disk"
	"cnibox/internal/flock"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// netnsDir contains the named network namespaces, those of ip-netns(8): each is mounted on a
// file of its name.
const netnsDir = "/run/netns"

// netnsPath is the path that an operand means: a bare name is that of a named namespace. It is
// made absolute and not resolved, since the container ID is made of its text.
func netnsPath(operand string) (string, error) {
	if operand == "" || strings.Contains(operand, "/") {
		return filepath.Abs(operand)
	}
	if err := checkNetNSName(operand); err != nil {
		return "", err
	}
	return filepath.Join(netnsDir, operand), nil
}

// checkNetNSName returns an error for what cannot be the name of a file in netnsDir.
func checkNetNSName(name string) error {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00") || len(name) > unix.NAME_MAX {
		return fmt.Errorf("%q is no name of a network namespace", name)
	}
	return nil
}

// named reports whether a path is that of a named namespace.
func named(path string) bool {
	return filepath.Dir(path) == netnsDir && checkNetNSName(filepath.Base(path)) == nil
}

// lockNames excludes other processes that make or delete named namespaces. It makes the
// directory as ip-netns(8) does.
func lockNames(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return nil, explainOthersRun(err)
	}
	fd, err := unix.Open(netnsDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: netnsDir, Err: err}
	}
	return flock.Wait(ctx, fd, unix.LOCK_EX)
}

// createNetNS makes a named namespace with lo up, unless it is there already. An empty file
// that an interrupted call has left serves. The container's attachments to a namespace that had the
// name are deleted before, and returned: the kernel may give the new one the same ID, and before Linux 5.14
// nothing else distinguishes them, see [nsid.Cookie].
func (c *call) createNetNS(ctx context.Context, path, containerID string) (created bool, left []*chain.Entry, err error) {
	unlock, err := lockNames(ctx)
	if err != nil {
		return false, nil, fmt.Errorf("create network namespace %s: %w", path, err)
	}
	defer unlock()
	if err := c.freeKilled(ctx, filepath.Base(path)); err != nil {
		return false, nil, err
	}
	_, err = rtnl.IDAt(path)
	switch {
	case err == nil:
		return false, nil, nil
	case errors.Is(err, nsid.ErrNotNS):
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
			return false, nil, fmt.Errorf("%s exists and is no network namespace", path)
		}
	case !errors.Is(err, os.ErrNotExist):
		return false, nil, err
	}
	if left, err = c.detachGone(ctx, path, containerID); err != nil {
		return false, nil, err
	}
	ns, err := rtnl.NewNS()
	if err == nil {
		defer ns.Close()
		err = bindNetNS(ns, path)
	}
	if err != nil {
		return false, nil, fmt.Errorf("create network namespace %s: %w", path, err)
	}
	return true, left, nil
}

// freeKilled deletes what a killed run of a name has left, which the next run would.
func (c *call) freeKilled(ctx context.Context, name string) error {
	freed, err := c.freeDeadName(name)
	if err != nil || !freed {
		return err
	}
	of := func(a spec.Attachment) bool { return a.ContainerID == chain.RunPrefix+name }
	if err := c.runner.DeleteStale(ctx, of); err != nil {
		c.runner.Warn("leftovers of a killed run: %v", err)
	}
	return nil
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
		c.runner.Warn("%s: deleting what an earlier ADD left", e.Attachment())
		if err := c.detachEntry(ctx, e); err != nil {
			c.runner.Warn("%s: leftovers of an earlier ADD: %v", e.Attachment(), err)
		}
	}
	return left, err
}

// bindNetNS gives a namespace its name, as the last step: what has a name is complete. The
// caller has the lock.
func bindNetNS(ns *rtnl.NS, path string) error {
	if err := upLo(ns); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if err := rtnl.ShareMounts(netnsDir); err != nil {
		return explainOthersRun(err)
	}
	err := disk.Change("create "+filepath.Base(path), func() error {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o444)
		if err != nil {
			return err
		}
		return f.Close()
	})
	if err == nil {
		err = ns.Bind(path)
	}
	if err != nil {
		return explainOthersRun(errors.Join(err, disk.Remove(path)))
	}
	return nil
}

// explainOthersRun adds to an error in netnsDir what root of a user namespace, whose /run is
// another user's, can do about it.
func explainOthersRun(err error) error {
	if errors.Is(err, os.ErrPermission) && unix.Geteuid() == 0 {
		return &hinted{err, "in a user namespace mount a directory for them first: mount -t tmpfs tmpfs /run"}
	}
	return err
}

// deleteNetNS takes the name from a namespace, which ends with its last process. That there is
// none is no error.
func deleteNetNS(ctx context.Context, path string) error {
	unlock, err := lockNames(ctx)
	if err == nil {
		defer unlock()
		err = unbindNetNS(path)
	}
	if err != nil {
		return fmt.Errorf("delete network namespace %s: %w", path, err)
	}
	return nil
}

// unbindNetNS is deleteNetNS for the holder of the lock. A file that never was a namespace stays.
func unbindNetNS(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, ns := rtnl.IDAt(path); err == nil && ns != nil && (!info.Mode().IsRegular() || info.Size() > 0) {
		return errors.New("it is none")
	}
	return errors.Join(rtnl.Unbind(path), disk.Remove(path))
}

// deleteUnused deletes the namespace of the target, unless something else is attached to it.
func (c *call) deleteUnused(ctx context.Context) error {
	entries, _, err := c.runner.Cache.List()
	if err != nil {
		return err
	}
	ns, err := rtnl.OpenNS(c.target.NetNS)
	if err != nil { // it is gone, or never was one
		return deleteNetNS(ctx, c.target.NetNS)
	}
	defer ns.Close()
	for _, e := range entries {
		if ns.At(e.NetNSPath()) && e.Live() { // by whatever path
			c.runner.Warn("%s stays: %s is attached", c.target.NetNS, e.Attachment())
			return nil
		}
	}
	return deleteNetNS(ctx, c.target.NetNS)
}
