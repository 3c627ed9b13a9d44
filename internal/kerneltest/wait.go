package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/rtnl"
)

// bound is how long a test waits for the kernel; a test that takes longer hangs.
func bound() time.Duration { return Timeout(3 * time.Minute) }

// Delete deletes network namespaces: it closes them and calls release, which drops the other references,
// such as a mount; it may be nil. It returns when the kernel has deleted all their links, with the peers of these.
// The kernel does so later, and not before the last socket, process and mount are gone: if one stays, the test fails.
func Delete(t testing.TB, release func() error, all ...*netns.NS) {
	t.Helper()
	// The kernel deletes all links of a namespace under one lock, which the question about the witnesses takes.
	witness := NS(t)
	defer witness.Close()
	c, err := rtnl.Dial(witness)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, ns := range all {
		if err := c.AddLink(rtnl.LinkSpec{Name: fmt.Sprint("w", i), Peer: &rtnl.LinkSpec{Name: "witness", NS: ns}}); err != nil {
			t.Fatal(err)
		}
	}
	events, err := nlconn.Listen(witness, unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	var errs []error
	if release != nil {
		errs = append(errs, release())
	}
	for _, ns := range all {
		errs = append(errs, ns.Close())
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound()) // that of t has ended in a cleanup
	defer cancel()
	for end := error(nil); ; end = events.Wait(ctx) {
		links, err := c.Links()
		if err == nil && len(links) == 1 { // lo
			return
		}
		if err = errors.Join(err, end); err != nil {
			t.Fatalf("a socket, a process or a mount keeps %d network namespaces: %v", len(links)-1, err)
		}
	}
}

// WaitUp returns when links of a namespace carry packets: the kernel finds the carrier after both ends of a pair are
// up, and drops packets until then.
func WaitUp(t testing.TB, ns *netns.NS, links ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound())
	defer cancel()
	Brief(t, ns, func(c *rtnl.Conn) error {
		for _, name := range links {
			l, err := c.Link(name)
			if err == nil {
				err = c.WaitUp(ctx, l.Index)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// WaitDown returns when the kernel has found that a link has no carrier.
func WaitDown(t testing.TB, ns *netns.NS, link string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound())
	defer cancel()
	Brief(t, ns, func(c *rtnl.Conn) error {
		_, err := c.WaitLink(ctx, func(l *rtnl.Link) bool { return l.Name == link && l.Flags&unix.IFF_RUNNING == 0 })
		return err
	})
}

// LinkLocal returns the IPv6 link-local address of a link as soon as it can be used. The kernel adds it when it
// finds the carrier, and then looks for duplicates.
func LinkLocal(t testing.TB, ns *netns.NS, link string) (addr netip.Addr) {
	t.Helper()
	WaitUp(t, ns, link)
	ctx, cancel := context.WithTimeout(context.Background(), bound())
	defer cancel()
	Brief(t, ns, func(c *rtnl.Conn) error {
		l, err := c.Link(link)
		if err == nil {
			err = c.WaitAddrs(ctx, l.Index)
		}
		if err != nil {
			return err
		}
		addrs, err := c.Addrs(l.Index)
		for _, a := range addrs {
			if a := a.Prefix.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
				addr = a
			}
		}
		if err == nil && !addr.IsValid() {
			err = fmt.Errorf("%s has no link-local address: %+v", link, addrs)
		}
		return err
	})
	return addr
}
