// Package rtnl speaks route netlink: links, addresses, routes, rules, bridge VLANs and queues. It
// knows nothing of CNI.
package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
	"cnibox/internal/once"
)

// errMalformed is about bytes that no kernel sends.
var errMalformed = errors.New("malformed netlink message")

// A Conn is a route netlink socket in one network namespace. It may be used
// from any goroutine and any thread; calls take turns.
type Conn struct{ c *nlconn.Conn }

// Dial opens a socket in ns. The thread stays where it is, and ns may be closed afterwards.
// A process that may enter ns may read; changes are refused with os.ErrPermission without
// CAP_NET_ADMIN there.
func Dial(ns *netns.NS) (*Conn, error) {
	c, err := nlconn.Open(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	return &Conn{c}, nil
}

// DialHost is [Dial] of the host for one verb, or once for those of many attachments ([once.WithCache]). host is what
// the verb has of it. The caller calls done in place of Close.
func DialHost(ctx context.Context, host *netns.NS) (c *Conn, done func(), err error) {
	if once.HasCache(ctx) {
		host = netns.Host() // what a verb keeps is closed at its end
	}
	return once.Open(ctx, "host's socket", func() (*Conn, error) { return Dial(host) }, func(c *Conn) { c.Close() })
}

// DialPath is [Dial] for the namespace of a path; see [netns.Open] for its errors.
func DialPath(path string) (*Conn, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return Dial(ns)
}

// InNewNS calls fn with a socket in a namespace that no other process has, to find
// out what the kernel supports, and to make it load the modules for that.
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

// Close closes the socket, unless a call keeps it.
func (c *Conn) Close() error { return c.c.Close() }

// NS opens the namespace that the socket is in, wherever its user's threads are.
func (c *Conn) NS() (ns *netns.NS, err error) {
	err = c.c.Within(func(fd int) error {
		ns, err = netns.OfSocket(fd)
		return err
	})
	return ns, err
}

// NSCookie is [netns.NS.Cookie] of the namespace that the socket is in.
func (c *Conn) NSCookie() (cookie uint64, err error) {
	err = c.c.Within(func(fd int) error {
		cookie, err = netns.SocketCookie(fd)
		return err
	})
	return cookie, err
}

// get sends one request and returns the messages that answer it.
func (c *Conn) get(req netlink.Message) ([]netlink.Message, error) {
	ms, err := c.c.Execute(req)
	return ms, asNotExist(err, req.Header.Type)
}

// dump returns all objects that the request is about. One that kept changing is used all
// the same, since it is right about all that did not change.
func (c *Conn) dump(req netlink.Message) ([]netlink.Message, error) {
	ms, err := c.c.Dump(req)
	if errors.Is(err, nlconn.ErrInterrupted) {
		err = nil
	}
	return ms, asNotExist(err, req.Header.Type)
}

// An absentError is an errno that means that there is no such object, for which errors.Is
// does not find os.ErrNotExist by itself.
type absentError struct{ err error }

// Error is the kernel's text, such as "no such device", and no more.
func (e *absentError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is find the number too.
func (e *absentError) Unwrap() error { return e.err }

// Is matches os.ErrNotExist; Unwrap leads to all else.
func (e *absentError) Is(target error) bool { return target == os.ErrNotExist }

// asNotExist makes os.ErrNotExist of the numbers that mean it: ENODEV for links,
// ESRCH for routes, EADDRNOTAVAIL for an address to delete. ENOENT is os.ErrNotExist
// already. request is the type of the request.
func asNotExist(err error, request netlink.HeaderType) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) ||
		request == unix.RTM_DELADDR && errors.Is(err, unix.EADDRNOTAVAIL) {
		return &absentError{err}
	}
	return err
}
