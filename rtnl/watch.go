package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// watchSpace is the receive buffer in bytes: deleting a bridge of 1,000 ports causes some 5,000
// notifications of 2 KB each.
const watchSpace = 16 << 20

// watchGroups are the multicast groups of links, addresses, and forwarding and the like.
const watchGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
	1<<(unix.RTNLGRP_IPV4_NETCONF-1) | 1<<(unix.RTNLGRP_IPV6_NETCONF-1)

// A Watch receives the kernel's notifications about links, their addresses, and forwarding.
type Watch struct {
	ns *netns.NS
	nl *nlconn.Conn
}

// WatchLinks begins to watch a namespace, which the caller keeps open. The caller closes the Watch.
func WatchLinks(ns *netns.NS) (*Watch, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_ROUTE, watchGroups)
	if err != nil {
		return nil, fmt.Errorf("link notifications: %w", err)
	}
	nl.ReceiveSpace(watchSpace)
	return &Watch{ns, nl}, nil
}

// Close ends the watch.
func (w *Watch) Close() { w.nl.Close() }

// Lost returns when something that gateways need was removed: a bridge, forwarding, or an address
// or the forwarding of an existing bridge or veth; what describes it. The error is the context's if that ends first.
func (w *Watch) Lost(ctx context.Context) (what string, err error) {
	for {
		ms, lost, err := w.nl.Notified(ctx)
		if err != nil {
			return "", err
		}
		if lost {
			return "more notifications came than the kernel could keep", nil
		}
		for _, m := range ms {
			if what, err := w.lost(m); what != "" || err != nil {
				return what, err
			}
		}
	}
}

// lost describes what a notification reports as removed; empty: nothing that gateways need.
func (w *Watch) lost(m netlink.Message) (what string, err error) {
	switch m.Header.Type {
	case unix.RTM_DELLINK:
		var l Link
		// A message of another family is about a bridge port.
		if len(m.Data) >= unix.SizeofIfInfomsg && m.Data[0] == unix.AF_UNSPEC && l.decode(m.Data) == nil && l.Kind == "bridge" {
			return fmt.Sprintf("bridge %s was deleted", l.Name), nil
		}
	case unix.RTM_DELADDR:
		var a Addr
		if index, err := a.decode(m.Data); err == nil && !a.Prefix.Addr().IsLinkLocalUnicast() {
			return w.lostAddress(index, a)
		}
	case unix.RTM_NEWNETCONF:
		if what := forwardingOff(m.Data); what != "" {
			return what, nil
		}
		if index, off := linkForwardingOff(m.Data); off {
			return w.lostForwarding(index, m.Data[0])
		}
	}
	return "", nil
}

// lostForwarding is lost for the forwarding of a link. It ignores that of all links at once, which
// has an event of its own.
func (w *Watch) lostForwarding(index uint32, family uint8) (what string, err error) {
	host, err := Dial(w.ns)
	if err != nil {
		return "", err
	}
	defer host.Close()
	if on, err := host.Forwards(family); err != nil || !on {
		return "", err
	}
	l, err := host.gateway(index)
	if l == nil || err != nil {
		return "", err
	}
	if family == unix.AF_INET {
		return fmt.Sprintf("net.ipv4.conf.%s.forwarding was set to 0", l.Name), nil
	}
	return fmt.Sprintf("net.ipv6.conf.%s.forwarding was set to 0", l.Name), nil
}

// gateway returns the link with an index if it is a bridge or veth, which may be that of a network.
func (c *Conn) gateway(index uint32) (*Link, error) {
	l, err := c.LinkAt(index)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case l.Kind != "bridge" && l.Kind != "veth":
		return nil, nil
	}
	return l, nil
}

// lostAddress is lost for an address. It ignores the addresses of a deleted link.
func (w *Watch) lostAddress(index uint32, a Addr) (what string, err error) {
	host, err := Dial(w.ns)
	if err != nil {
		return "", err
	}
	defer host.Close()
	l, err := host.gateway(index)
	if l == nil || err != nil {
		return "", err
	}
	return fmt.Sprintf("address %s was removed from %s", a.Prefix, l.Name), nil
}
