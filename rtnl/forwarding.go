package rtnl

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// Attributes of RTM_NEWNETCONF, include/uapi/linux/netconf.h.
const (
	netconfHeader     = 4          // bytes of struct netconfmsg, with padding
	netconfIfIndex    = 1          // NETCONFA_IFINDEX
	netconfForwarding = 2          // NETCONFA_FORWARDING
	netconfAll        = 0xffffffff // NETCONFA_IFINDEX_ALL
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
	if len(b) < netconfHeader {
		return false, false
	}
	index := nlconn.Attribute(b[netconfHeader:], netconfIfIndex)
	value := nlconn.Attribute(b[netconfHeader:], netconfForwarding)
	if len(index) != 4 || len(value) != 4 {
		return false, false
	}
	return binary.NativeEndian.Uint32(index) == netconfAll, binary.NativeEndian.Uint32(value) == 0
}
