package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

// NetNSDir contains the named network namespaces, as for ip-netns(8): each is mounted on a file of
// its name.
const NetNSDir = "/run/netns"

// NetNSPath returns the path for an operand: a name without a slash is that of a named namespace.
// The path is made absolute but not resolved, since the container ID is derived from its text.
func NetNSPath(operand string) (string, error) {
	if operand == "" || strings.Contains(operand, "/") {
		return filepath.Abs(operand)
	}
	if err := CheckNetNSName(operand); err != nil {
		return "", err
	}
	return filepath.Join(NetNSDir, operand), nil
}

// CheckNetNSName returns an error for an invalid name of a file in NetNSDir.
func CheckNetNSName(name string) error {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00") || len(name) > unix.NAME_MAX {
		return fmt.Errorf("%q is not a valid name of a network namespace", name)
	}
	return nil
}

// IsNamed reports whether a path is that of a named namespace.
func IsNamed(path string) bool {
	return filepath.Dir(path) == NetNSDir && CheckNetNSName(filepath.Base(path)) == nil
}

// lockNames excludes other processes that create or delete named namespaces. It creates the
// directory as ip-netns(8) does.
func lockNames(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(NetNSDir, 0o755); err != nil {
		return nil, explainOthersRun(err)
	}
	fd, err := unix.Open(NetNSDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: NetNSDir, Err: err}
	}
	return flock.Wait(ctx, fd, unix.LOCK_EX)
}

// Names are the named namespaces, and the named runs.
type Names struct{ Runner *chain.Runner }

// Create creates a named namespace with lo up, unless it exists. It uses an empty file that an
// interrupted call has left. Before that, detach deletes the attachments to a former namespace of
// that name: the kernel may give the new one the same ID, and before Linux 5.14 nothing else
// distinguishes them, see [netns.NS.Cookie].
func (n Names) Create(ctx context.Context, path string, detach func() error) (created bool, err error) {
	unlock, err := lockNames(ctx)
	if err != nil {
		return false, fmt.Errorf("create network namespace %s: %w", path, err)
	}
	defer unlock()
	if err := n.freeKilled(ctx, filepath.Base(path)); err != nil {
		return false, err
	}
	_, err = netns.IDAt(path)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, netns.ErrNotNS):
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
			return false, fmt.Errorf("%s exists and is not a network namespace", path)
		}
	case !errors.Is(err, os.ErrNotExist):
		return false, err
	default:
		// Such a link leads to the /proc of a process that has ended.
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSymlink {
			if err := disk.Remove(path); err != nil {
				return false, fmt.Errorf("replace the link %s, which leads nowhere: %w", path, err)
			}
		}
	}
	if err := detach(); err != nil {
		return false, err
	}
	ns, err := netns.New()
	if err == nil {
		defer ns.Close()
		err = bindNetNS(ns, path)
	}
	if err != nil {
		return false, fmt.Errorf("create network namespace %s: %w", path, err)
	}
	return true, nil
}

// freeKilled deletes what a killed run of that name has left, which otherwise the next run would
// do.
func (n Names) freeKilled(ctx context.Context, name string) error {
	freed, err := n.freeDeadName(name)
	if err != nil || !freed {
		return err
	}
	matches := func(a spec.Attachment) bool { return a.ContainerID == chain.RunPrefix+name }
	if err := n.Runner.DeleteStale(ctx, matches); err != nil {
		n.Runner.Warn("leftovers of a killed run: %v", err)
	}
	return nil
}

// bindNetNS gives a namespace its name, as the last step: a namespace with a name is complete. The
// caller has the lock.
func bindNetNS(ns *netns.NS, path string) error {
	if err := upLo(ns); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if err := netns.ShareMounts(NetNSDir); err != nil {
		return explainOthersRun(err)
	}
	err := disk.Change("create "+filepath.Base(path), func() error {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o444)
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

// explainOthersRun adds advice to an error in NetNSDir for root of a user namespace, for whom /run
// belongs to another user.
func explainOthersRun(err error) error {
	if errors.Is(err, os.ErrPermission) && unix.Geteuid() == 0 {
		return &hint.Error{Err: err, Hint: "in a user namespace mount a directory for them first: mount -t tmpfs tmpfs /run"}
	}
	return err
}

// deleteNetNS removes the name of a namespace, which then ends with its last process. A missing
// name is not an error.
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

// unbindNetNS is deleteNetNS for the holder of the lock. A file that is not a namespace stays.
func unbindNetNS(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, ns := netns.IDAt(path); err == nil && ns != nil && (!info.Mode().IsRegular() || info.Size() > 0) {
		return errors.New("it is not a network namespace")
	}
	return errors.Join(netns.Unbind(path), disk.Remove(path))
}

// Attached has an attachment of each network namespace with live attachments.
type Attached map[netns.ID]*chain.Entry

// Attached reads the cache.
func (n Names) Attached() (Attached, error) {
	entries, _, err := n.Runner.Cache.List()
	attached := Attached{}
	for _, e := range entries {
		if id, err := netns.IDAt(e.NetNSPath()); err == nil && attached[id] == nil && e.Live() {
			attached[id] = e
		}
	}
	return attached, err
}

// DeleteUnused deletes a named namespace without attachments, by whatever path these have.
func (n Names) DeleteUnused(ctx context.Context, path string, attached Attached) error {
	if own, err := netns.Current(); err == nil {
		isOwn := own.IsAt(path)
		own.Close()
		if isOwn {
			return fmt.Errorf("%s is this host's own network namespace, and no container's: it stays", path)
		}
	}
	id, err := netns.IDAt(path)
	if e := attached[id]; err == nil && e != nil { // an error: it is gone, or never was one
		n.Runner.Warn("%s stays: %s is attached", path, e.Title())
		return nil
	}
	return deleteNetNS(ctx, path)
}
