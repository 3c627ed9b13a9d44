package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrDuplicateAddress is returned when another host was found to have an address.
var ErrDuplicateAddress = errors.New("duplicate address detected")

// eventPause bounds how long WaitAddrs trusts in being told: a notification is
// lost when the receive buffer is full.
const eventPause = 200 * time.Millisecond

// WaitAddrs returns when no address of the link is tentative any more. It is
// woken by the kernel's notifications. The error is [ErrDuplicateAddress] if
// somebody else has one of them, and the context's if that ends first: a link
// without carrier keeps its addresses tentative.
func (c *Conn) WaitAddrs(ctx context.Context, index uint32) error {
	settled, err := c.settled(index)
	if settled || err != nil {
		return err
	}
	if err := c.nl.JoinGroup(unix.RTNLGRP_IPV6_IFADDR); err != nil {
		return fmt.Errorf("address notifications: %w", err)
	}
	defer c.nl.LeaveGroup(unix.RTNLGRP_IPV6_IFADDR)
	for {
		seen := c.eventCount()
		settled, err := c.settled(index)
		if errors.Is(err, unix.ENOBUFS) {
			continue // so many notifications that the answer had no room
		}
		if settled || err != nil {
			return err
		}
		if err := c.waitEvent(ctx, seen); err != nil {
			return fmt.Errorf("addresses of link #%d are tentative: %w", index, err)
		}
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

func (c *Conn) eventCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events
}

// waitEvent returns when there was a notification since the count was taken,
// or some time later to look anyhow; the error is the context's.
func (c *Conn) waitEvent(ctx context.Context, seen int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events != seen {
		return ctx.Err()
	}
	if err := c.nl.SetReadDeadline(time.Now().Add(eventPause)); err != nil {
		return err
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.nl.SetReadDeadline(time.Unix(1, 0))
		close(woken)
	})
	_, err := c.read()
	if !stop() {
		<-woken // or the deadline could be set behind our back once more
	}
	if derr := c.nl.SetReadDeadline(time.Time{}); derr != nil {
		return derr
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.stale = errors.Is(err, unix.ENOBUFS)
	if c.stale || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// The pauses of WaitPort: a port mostly forwards within a millisecond after its
// other end came up, and later only when the machine is busy.
const (
	firstPause = 50 * time.Microsecond
	lastPause  = 10 * time.Millisecond
)

// WaitPort returns when a bridge port forwards packets. The other end must be
// up. The error is the context's if that ends first.
func (c *Conn) WaitPort(ctx context.Context, index uint32) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		l, err := c.LinkAt(index)
		if err != nil {
			return err
		}
		if l.Master == 0 {
			return fmt.Errorf("link %s is not a bridge port", l.Name)
		}
		if l.OperUp && l.PortState == PortForwarding {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("bridge port %s does not forward: %w", l.Name, ctx.Err())
		case <-timer.C:
		}
	}
}
