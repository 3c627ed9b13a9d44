package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// A Listener is a socket that accepts connections, or receives UDP packets, from anywhere.
type Listener struct {
	Addr   netip.AddrPort // an unspecified address means any
	V6Only bool           // of an IPv6 socket: it does not accept IPv4
	Inode  uint32         // as in /proc/PID/fd: "socket:[INODE]"
}

// Messages of sock_diag, which x/sys lacks: include/uapi/linux/inet_diag.h, inet_diag_req_v2 and
// inet_diag_msg. Ports and addresses are in network byte order.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY, include/uapi/linux/sock_diag.h
	diagRequest  = 56 // bytes
	diagMessage  = 72 // bytes
	diagPort     = 4  // of the message: the local port
	diagAddr     = 8  // and address
	diagInode    = 68
	diagV6Only   = 11 // INET_DIAG_SKV6ONLY

	tcpClose, tcpListen = 7, 10 // TCP_CLOSE, TCP_LISTEN, include/net/tcp_states.h
)

// Listeners lists the listening sockets of a protocol, such as unix.IPPROTO_TCP, in ns. It returns
// an error if the kernel was built without sock_diag for the protocol.
func Listeners(ns *netns.NS, protocol uint8) ([]Listener, error) {
	c, err := nlconn.Open(ns, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	defer c.Close()
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		state := tcpListen
		if protocol == unix.IPPROTO_UDP {
			state = tcpClose // the state of an unconnected socket
		}
		data := make([]byte, diagRequest)
		data[0], data[1] = family, protocol
		binary.NativeEndian.PutUint32(data[4:], 1<<state)
		ms, err := c.Dump(request(diagByFamily, 0, data))
		if err != nil && !errors.Is(err, nlconn.ErrInterrupted) {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		for _, m := range ms {
			if l, ok := decodeListener(m.Data); ok {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// decodeListener decodes an inet_diag_msg; false: it is truncated or has no port.
func decodeListener(b []byte) (l Listener, ok bool) {
	if len(b) < diagMessage {
		return l, false
	}
	size := 4
	if b[0] == unix.AF_INET6 {
		size = 16
	}
	addr, _ := netip.AddrFromSlice(b[diagAddr : diagAddr+size])
	l.Addr = netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(b[diagPort:]))
	l.V6Only = number(nlconn.Attribute(b[diagMessage:], diagV6Only)) == 1
	l.Inode = binary.NativeEndian.Uint32(b[diagInode:])
	return l, l.Addr.Port() != 0
}
