package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// watchSpace is what notifications may wait in, in bytes: a bridge of 1,000 ports that is deleted
// has some 5,000, of 2 KB each.
const watchSpace = 16 << 20

// watchGroups are those of links, of addresses, and of forwarding and the like.
const watchGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
	1<<(unix.RTNLGRP_IPV4_NETCONF-1) | 1<<(unix.RTNLGRP_IPV6_NETCONF-1)

// Attributes of RTM_NEWNETCONF, include/uapi/linux/netconf.h.
const (
	netconfHeader     = 4          // bytes of struct netconfmsg, with padding
	netconfIfIndex    = 1          // NETCONFA_IFINDEX
	netconfForwarding = 2          // NETCONFA_FORWARDING
	netconfAll        = 0xffffffff // NETCONFA_IFINDEX_ALL
)

// A Watch gets the kernel's notifications about links, their addresses, and forwarding.
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

// Close ends it.
func (w *Watch) Close() { w.nl.Close() }

// Lost returns when something was taken away that gateways need: a bridge, an address of a bridge or
// of a veth that is there still, or forwarding; and what it was, in words. The error is the context's
// if that ends first.
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

// lost returns what a notification says was taken away; empty: nothing that counts.
func (w *Watch) lost(m netlink.Message) (what string, err error) {
	switch m.Header.Type {
	case unix.RTM_DELLINK:
		var l Link
		// A message of another family is about the port of a bridge.
		if len(m.Data) >= unix.SizeofIfInfomsg && m.Data[0] == unix.AF_UNSPEC && l.decode(m.Data) == nil && l.Kind == "bridge" {
			return fmt.Sprintf("bridge %s was deleted", l.Name), nil
		}
	case unix.RTM_DELADDR:
		var a Addr
		if index, err := a.decode(m.Data); err == nil && !a.Prefix.Addr().IsLinkLocalUnicast() {
			return w.lostAddress(index, a)
		}
	case unix.RTM_NEWNETCONF:
		return forwardingOff(m.Data), nil
	}
	return "", nil
}

// lostAddress is lost for an address. That of a link which is deleted goes with it.
func (w *Watch) lostAddress(index uint32, a Addr) (what string, err error) {
	host, err := Dial(w.ns)
	if err != nil {
		return "", err
	}
	defer host.Close()
	l, err := host.LinkAt(index)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case l.Kind != "bridge" && l.Kind != "veth":
		return "", nil
	}
	return fmt.Sprintf("address %s was removed from %s", a.Prefix, l.Name), nil
}

// forwardingOff names the setting by which a message says that nothing is forwarded; empty: it does not
// say that, or of one link alone.
func forwardingOff(b []byte) string {
	if len(b) < netconfHeader {
		return ""
	}
	number := func(attribute uint16) uint32 {
		v := nlconn.Attribute(b[netconfHeader:], attribute)
		if len(v) != 4 {
			return 1
		}
		return binary.NativeEndian.Uint32(v)
	}
	switch {
	case number(netconfIfIndex) != netconfAll, number(netconfForwarding) != 0:
		return ""
	case b[0] == unix.AF_INET:
		return "net.ipv4.ip_forward was set to 0"
	case b[0] == unix.AF_INET6:
		return "net.ipv6.conf.all.forwarding was set to 0"
	}
	return ""
}
