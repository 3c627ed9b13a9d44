// Package result is shared by plugins that work on the result of others (bandwidth, portmap,
// sbr, tuning, vrf): it has the interface that CNI_IFNAME names in the container, the record of its
// owner, and routes that move to another table.
package result

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/applets/netns"
	"cnibox/internal/flock"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// An Interface is the container's interface, opened. At DEL all of it may be missing.
type Interface struct {
	NS   *rtnl.NS   // nil: gone
	Conn *rtnl.Conn // in ns; nil without it
	Link *rtnl.Link // CNI_IFNAME, as it was when it was opened; nil: gone

	unlock func() // see Lock; nil: not locked
}

// Open opens the namespace and finds the interface. none is the code of the error if that is
// missing; 0, for DEL: it is no error. The caller closes it.
func Open(r *spec.Request, none int) (*Interface, error) {
	open := netns.Open
	if none == 0 {
		open = netns.OpenIfThere
	}
	ns, err := open(r.Call)
	if err != nil {
		return nil, err
	}
	c := &Interface{NS: ns}
	if ns == nil {
		return c, nil
	}
	if c.Conn, err = rtnl.Dial(c.NS); err == nil {
		c.Link, err = c.Conn.Link(r.IfName)
	}
	if errors.Is(err, os.ErrNotExist) {
		if none == 0 {
			return c, nil
		}
		err = spec.Errorf(none, "%w in %s", err, r.Call.NetNS)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the descriptors, which releases the lock.
func (c *Interface) Close() {
	if c.unlock != nil {
		c.unlock()
	}
	if c.Conn != nil {
		c.Conn.Close()
	}
	if c.NS != nil {
		c.NS.Close()
	}
}

// Lock excludes others, the reference's sbr among them, from changing the rules of the namespace
// until Close. It is an flock(2) on the namespace itself. The code is 11 if others hold it too long.
func (c *Interface) Lock(ctx context.Context) error {
	// opened anew: the lock is that of the open file, which others of the call have as well
	fd, err := nsid.Open(fmt.Sprintf("/proc/thread-self/fd/%d", c.NS.FD()))
	if err != nil {
		return err
	}
	unlock, err := flock.Wait(ctx, fd, unix.LOCK_EX)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return spec.Errorf(spec.CodeTryAgain, "lock of the network namespace: %w", err)
	case err != nil:
		return fmt.Errorf("lock of the network namespace: %w", err)
	}
	c.unlock = unlock
	return nil
}
