package rtnl

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// errMalformed is about bytes that no kernel sends.
var errMalformed = errors.New("malformed netlink message")

// A Conn is a route netlink socket in one network namespace. It may be used
// from any goroutine and any thread; calls take turns.
type Conn struct{ s *netlink.Socket }

// Dial opens a socket in ns; nil is the namespace of the calling thread. The
// thread stays where it is, and ns may be closed afterwards. Whoever may enter ns
// may read; changes are refused with os.ErrPermission without CAP_NET_ADMIN there.
func Dial(ns *NS) (*Conn, error) {
	s, err := netlink.Open(unix.NETLINK_ROUTE, ns.Do)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	return &Conn{s}, nil
}

// InNewNS calls fn with a socket in a namespace that nobody else sees, to find
// out what the kernel has, and to have it load what it has as modules.
func InNewNS(fn func(*Conn) error) error {
	ns, err := NewNS()
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

// Close gives the socket back.
func (c *Conn) Close() error { return c.s.Close() }

// NS opens the namespace that the socket is in, wherever its user's threads are.
func (c *Conn) NS() (ns *NS, err error) {
	err = c.s.Within(func(fd int) error {
		nsFD, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
		if err != nil {
			return os.NewSyscallError("ioctl SIOCGSKNS", err)
		}
		ns = &NS{nsFD}
		return nil
	})
	return ns, err
}

// exchange is Exchange of the socket, with the refusals told by [absent].
func (c *Conn) exchange(reqs []netlink.Request, each func(i int, m netlink.Message) error) ([]netlink.Answer, error) {
	answers, err := c.s.Exchange(reqs, each)
	for i := range answers {
		answers[i].Err = absent(answers[i].Err, reqs[i].Type)
	}
	return answers, err
}

// get sends one request and gives its answers to each.
func (c *Conn) get(r netlink.Request, each func(m netlink.Message) error) error {
	return absent(c.s.Get(r, each), r.Type)
}

// dump gives all objects that r is about to each. One that kept changing is
// used all the same, since it is right about all that did not change.
func (c *Conn) dump(r netlink.Request, each func(m netlink.Message) error) error {
	err := c.s.Dump(r, each)
	if err == netlink.ErrChanged {
		return nil
	}
	return absent(err, r.Type)
}

// An absentError is a refusal because the thing asked for is not there, which
// the number alone does not say.
type absentError struct{ err error }

// Error is the kernel's text, such as "no such device", and no more.
func (e *absentError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is find the number too.
func (e *absentError) Unwrap() error { return e.err }

// Is answers for os.ErrNotExist alone; the rest is asked of the error within.
func (e *absentError) Is(target error) bool { return target == os.ErrNotExist }

// absent makes os.ErrNotExist of the numbers that mean it: ENODEV for links,
// ESRCH for routes, EADDRNOTAVAIL for an address to delete. ENOENT says so by
// itself. The request is told by its type.
func absent(err error, request uint16) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) ||
		request == unix.RTM_DELADDR && errors.Is(err, unix.EADDRNOTAVAIL) {
		return &absentError{err}
	}
	return err
}
