package chained

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Interface is the container's interface, opened. At DEL each part may be missing.
type Interface struct {
	NS   *netns.NS  // nil: gone
	Conn *rtnl.Conn // in ns; nil without it
	Link *rtnl.Link // CNI_IFNAME, as it was when it was opened; nil: gone

	session *session.Session
	unlock  func() // see Lock; nil: not locked
}

// Open opens the namespace and finds the interface. missingCode is the code of the error for a
// missing one; 0, for DEL: it is not an error.
func Open(r *spec.Request, missingCode int) (*Interface, error) {
	open := r.Call.OpenNS
	if missingCode == 0 {
		open = r.Call.OpenNSIfExists
	}
	ns, err := open()
	if err != nil {
		return nil, err
	}
	c := &Interface{NS: ns, session: r.Call.Session}
	if ns == nil {
		return c, nil
	}
	if c.Conn, err = rtnl.In(r.Call.Session, c.NS); err == nil {
		c.Link, err = c.Conn.Link(r.IfName)
	}
	if errors.Is(err, os.ErrNotExist) {
		if missingCode == 0 {
			return c, nil
		}
		err = spec.Errorf(missingCode, "%w in %s", err, r.Call.NetNS)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Lock prevents others, including the reference's sbr, from changing the rules of the namespace
// until Unlock. It is an flock(2) on the namespace itself. The code is 11 if others hold it too
// long.
func (c *Interface) Lock(ctx context.Context) error {
	// Opened anew, since a flock(2) belongs to the open file, which the call shares with others.
	ns, err := netns.Open(fmt.Sprintf("/proc/thread-self/fd/%d", c.NS.FD()))
	if err != nil {
		return err
	}
	unlock, err := flock.Wait(ctx, ns.FD(), unix.LOCK_EX)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return spec.Errorf(spec.CodeTryAgain, "lock of the network namespace: %w", err)
	case err != nil:
		return fmt.Errorf("lock of the network namespace: %w", err)
	}
	c.unlock = unlock
	return nil
}

// Unlock ends Lock, if there was one.
func (c *Interface) Unlock() {
	if c.unlock != nil {
		c.unlock()
		c.unlock = nil
	}
}

// openNamespace opens the namespace for settings that do not need the interface.
func openNamespace(r *spec.Request) (*Interface, error) {
	ns, err := r.Call.OpenNS()
	if err != nil {
		return nil, err
	}
	return &Interface{NS: ns, Link: &rtnl.Link{}, session: r.Call.Session}, nil
}

// Record writes the record of an attachment that stores no other data, before the first change.
func (op *Op) Record() error { return WriteRecord(op, record.Name(op.Attachment), struct{}{}) }

// Owned reports whether DEL may change the interface, see [Interface.Owns]. If not, it sets op.Link
// to nil.
func (op *Op) Owned(rec *record.Head) (bool, error) {
	hasLink := op.Link != nil
	own, err := op.Owns(op.Request, op.Dir, rec)
	if !own {
		op.Foreign, op.Link = hasLink, nil
	}
	return own, err
}
