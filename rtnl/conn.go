// Package rtnl implements route netlink: links, addresses, routes, rules, bridge VLANs and queueing
// disciplines. It does not depend on CNI.
package rtnl

import (
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/internal/session"
)

// errMalformed is the error for bytes that no kernel sends.
var errMalformed = errors.New("malformed netlink message")

// A Conn is a route netlink socket in one network namespace. It may be used from any goroutine and
// any thread; calls are serialized.
type Conn struct{ c *nlconn.Conn }

// Dial opens a socket in ns. The calling thread does not change its namespace, and ns may be closed
// afterwards. A process that may enter ns may read; changes return os.ErrPermission without
// CAP_NET_ADMIN there.
func Dial(ns *netns.NS) (*Conn, error) {
	c, err := nlconn.Open(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	return &Conn{c}, nil
}

// In returns the socket of a session in ns, which the session closes.
func In(s *session.Session, ns *netns.NS) (*Conn, error) {
	c, err := s.Conn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	return &Conn{c}, nil
}

// OnHost is In for the host.
func OnHost(s *session.Session) (*Conn, error) { return In(s, netns.Host()) }

// DialPath is [Dial] for the namespace at a path; see [netns.Open] for its errors.
func DialPath(path string) (*Conn, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return Dial(ns)
}

// InNewNS calls fn with a socket in a new namespace that no other process has, to find out what the
// kernel supports and to make it load the modules for that.
func InNewNS(fn func(*Conn) error) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	return fn(c)
}

// Close closes the socket. One of [In] is not closed: others use it.
func (c *Conn) Close() error { return c.c.Close() }

// NS opens the namespace of the socket, which may differ from the calling thread's.
func (c *Conn) NS() (ns *netns.NS, err error) {
	err = c.c.Within(func(fd int) error {
		ns, err = netns.OfSocket(fd)
		return err
	})
	return ns, err
}

// NSCookie is [netns.NS.Cookie] of the socket's namespace.
func (c *Conn) NSCookie() (cookie uint64, err error) {
	err = c.c.Within(func(fd int) error {
		cookie, err = netns.SocketCookie(fd)
		return err
	})
	return cookie, err
}

// get sends one request and returns its answers.
func (c *Conn) get(req netlink.Message) ([]netlink.Message, error) {
	ms, err := c.c.Execute(req)
	return ms, asNotExist(err, req.Header.Type)
}

// dump returns all objects of the request. An interrupted dump is used nevertheless, since it is
// right about all objects that did not change.
func (c *Conn) dump(req netlink.Message) ([]netlink.Message, error) {
	ms, err := c.c.Dump(req)
	if errors.Is(err, nlconn.ErrInterrupted) {
		err = nil
	}
	return ms, asNotExist(err, req.Header.Type)
}

// An absentError is an errno for a missing object that errors.Is does not match with os.ErrNotExist
// by itself.
type absentError struct{ err error }

// Error returns only the kernel's text, such as "no such device".
func (e *absentError) Error() string { return e.err.Error() }

// Unwrap returns the errno.
func (e *absentError) Unwrap() error { return e.err }

// Is matches os.ErrNotExist.
func (e *absentError) Is(target error) bool { return target == os.ErrNotExist }

// asNotExist turns the errnos for missing objects into os.ErrNotExist: ENODEV for links, ESRCH for
// routes, EADDRNOTAVAIL for an address to delete. ENOENT matches already. request is the type of
// the request.
func asNotExist(err error, request netlink.HeaderType) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) ||
		request == unix.RTM_DELADDR && errors.Is(err, unix.EADDRNOTAVAIL) {
		return &absentError{err}
	}
	return err
}
