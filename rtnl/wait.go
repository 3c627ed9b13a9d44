package rtnl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// ErrDuplicateAddress is the error when duplicate address detection found another host with the
// address.
var ErrDuplicateAddress = errors.New("duplicate address detected")

// WaitAddrs returns when no address of the link is tentative any more. It reads the addresses after
// each notification of the kernel, and once more when the context ends, since this process may not
// have run until then. The error is [ErrDuplicateAddress] if another host has one of the addresses,
// and the context's if that ends first: addresses of a link without carrier stay tentative.
func (c *Conn) WaitAddrs(ctx context.Context, index uint32) error {
	settled, err := c.settled(index)
	if settled || err != nil {
		return err
	}
	events, err := c.listen(unix.RTMGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("address notifications: %w", err)
	}
	defer events.Close()
	for end := error(nil); ; end = events.Wait(ctx) {
		settled, err := c.settled(index)
		switch {
		case settled || err != nil:
			return err
		case end != nil:
			return fmt.Errorf("addresses of link #%d are tentative: %w", index, end)
		}
		fault.Done(fault.Waits, 1)
	}
}

// listen opens a second socket for notifications in the namespace of this one: notifications must
// not fill the receive buffer of the answers.
func (c *Conn) listen(groups uint32) (*nlconn.Conn, error) {
	ns, err := c.NS()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return nlconn.Listen(ns, unix.NETLINK_ROUTE, groups)
}

// WaitLink returns the first matching link as soon as it exists. The error is the context's if that
// ends first, after a last check.
func (c *Conn) WaitLink(ctx context.Context, fits func(*Link) bool) (*Link, error) {
	events, err := c.listen(unix.RTMGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("link notifications: %w", err)
	}
	defer events.Close()
	for end := error(nil); ; end = events.Wait(ctx) {
		links, err := c.Links()
		if err != nil {
			return nil, err
		}
		for i := range links {
			if fits(&links[i]) {
				return &links[i], nil
			}
		}
		if end != nil {
			return nil, end
		}
		fault.Done(fault.Waits, 1)
	}
}

// settled reports whether no address of the link is tentative.
func (c *Conn) settled(index uint32) (bool, error) {
	addrs, err := c.Addrs(index)
	if err != nil {
		return false, err
	}
	settled := true
	for _, a := range addrs {
		if a.DADFailed {
			return false, fmt.Errorf("address %s of link #%d: %w", a.Prefix, index, ErrDuplicateAddress)
		}
		settled = settled && !a.Tentative
	}
	return settled, nil
}

// The poll intervals of WaitUp: a link mostly carries packets within a millisecond after its peer
// came up, and later only on a busy machine.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = 10 * time.Millisecond
)

// WaitUp returns when a link carries packets, and a bridge port forwards them: the kernel notices
// with a delay that the peer came up, and drops packets until then. The error is the context's if
// that ends first, after a last check.
func (c *Conn) WaitUp(ctx context.Context, index uint32) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		end := ctx.Err()
		l, err := c.LinkAt(index)
		if err != nil {
			return err
		}
		if l.OperUp && (l.Master == 0 || l.PortState == PortForwarding) {
			return nil
		}
		if end != nil {
			return fmt.Errorf("link %s carries no packets: %w", l.Name, end)
		}
		fault.Done(fault.Waits, 1)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
