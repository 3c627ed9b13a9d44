package rtnl

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// Attributes of RTM_NEWNETCONF, include/uapi/linux/netconf.h.
const (
	netconfHeader     = 4          // bytes of struct netconfmsg, with padding
	netconfIfIndex    = 1          // NETCONFA_IFINDEX
	netconfForwarding = 2          // NETCONFA_FORWARDING
	netconfProxyNeigh = 5          // NETCONFA_PROXY_NEIGH
	netconfAll        = 0xffffffff // NETCONFA_IFINDEX_ALL
	netconfDefault    = 0xfffffffe // NETCONFA_IFINDEX_DEFAULT
)

// Forwards reports whether the host forwards packets of a family, unix.AF_INET or unix.AF_INET6:
// whether net.ipv4.ip_forward or net.ipv6.conf.all.forwarding is 1. It returns an error if the
// kernel lacks the family.
func (c *Conn) Forwards(family uint8) (bool, error) {
	data, err := encode([]byte{family, 0, 0, 0}, func(ae *netlink.AttributeEncoder) { ae.Uint32(netconfIfIndex, netconfAll) })
	if err != nil {
		return false, err
	}
	ms, err := c.get(request(unix.RTM_GETNETCONF, 0, data))
	if err == nil && len(ms) != 1 {
		err = errMalformed
	}
	if err != nil {
		return false, fmt.Errorf("forwarding: %w", err)
	}
	all, off := allForwarding(ms[0].Data)
	if !all {
		return false, fmt.Errorf("forwarding: %w", errMalformed)
	}
	return !off, nil
}

// forwardingOff names the sysctl if a message says that forwarding is off in the namespace; empty:
// forwarding is on, or the message is about one link.
func forwardingOff(b []byte) string {
	switch all, off := allForwarding(b); {
	case !all, !off:
		return ""
	case b[0] == unix.AF_INET:
		return "net.ipv4.ip_forward was set to 0"
	case b[0] == unix.AF_INET6:
		return "net.ipv6.conf.all.forwarding was set to 0"
	}
	return ""
}

// allForwarding reports whether a message is about the forwarding of the whole namespace, and
// whether forwarding is off.
func allForwarding(b []byte) (all, off bool) {
	index, off, ok := netconf(b)
	return ok && index == netconfAll, off
}

// netconf reads the forwarding in a message about a link, netconfAll or netconfDefault; ok is false
// if the message has none.
func netconf(b []byte) (index uint32, off, ok bool) {
	if len(b) < netconfHeader {
		return 0, false, false
	}
	link := nlconn.Attribute(b[netconfHeader:], netconfIfIndex)
	value := nlconn.Attribute(b[netconfHeader:], netconfForwarding)
	if len(link) != 4 || len(value) != 4 {
		return 0, false, false
	}
	return binary.NativeEndian.Uint32(link), binary.NativeEndian.Uint32(value) == 0, true
}

// linkForwardingOff returns the link if a message says that its forwarding was set to 0. The message
// about a new link has all its settings.
func linkForwardingOff(b []byte) (index uint32, off bool) {
	index, off, ok := netconf(b)
	isNew := ok && nlconn.Attribute(b[netconfHeader:], netconfProxyNeigh) != nil
	return index, ok && off && !isNew && index < netconfDefault
}
