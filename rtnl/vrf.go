package rtnl

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// A VRF is a routing domain: the links that have it as master use its table.
type VRF struct {
	Table int // 1 and up
}

func (VRF) kind() string { return "vrf" }

// encode writes IFLA_VRF_TABLE, include/uapi/linux/if_link.h. It is
// unix.EINVAL for a table that no route can be in.
func (v VRF) encode(ae *netlink.AttributeEncoder) error {
	if v.Table <= 0 || check32(v.Table) != nil {
		return fmt.Errorf("table %d: %w", v.Table, unix.EINVAL)
	}
	ae.Uint32(unix.IFLA_VRF_TABLE, uint32(v.Table))
	return nil
}

// An IFB gets packets that filters redirect to it, and gives them back when it
// would send them: it is where what a link receives can be queued.
type IFB struct{}

func (IFB) kind() string                           { return "ifb" }
func (IFB) encode(*netlink.AttributeEncoder) error { return nil }

// NSID returns the number that another namespace has in the socket's own, by
// which [Link.LinkNetNSID] names the namespace of a link's parent; -1 if it has none, as
// when no link leads there.
func (c *Conn) NSID(ns *netns.NS) (int, error) {
	const fd, nsid = 3, 1 // NETNSA_FD, NETNSA_NSID: include/uapi/linux/net_namespace.h
	const header = 4      // of struct rtgenmsg, padded
	data, err := encode(make([]byte, header), func(ae *netlink.AttributeEncoder) { ae.Uint32(fd, uint32(ns.FD())) })
	var ms []netlink.Message
	if err == nil {
		ms, err = c.get(request(unix.RTM_GETNSID, 0, data))
	}
	if err != nil {
		return -1, fmt.Errorf("number of a network namespace: %w", err)
	}
	for _, m := range ms {
		if v := nlconn.Attribute(m.Data[min(len(m.Data), header):], nsid); len(v) == 4 {
			return int(int32(binary.NativeEndian.Uint32(v))), nil
		}
	}
	return -1, nil
}

// VethPeer returns the other end of a veth pair, which is in the socket's namespace while
// l is in ns, another one. The error is os.ErrNotExist for what is not such a veth.
// Indexes are counted in each namespace, so what has the index of the peer must lead
// back, to the very namespace.
func (c *Conn) VethPeer(l *Link, ns *netns.NS) (*Link, error) {
	none := fmt.Errorf("%s has no veth peer here: %w", l.Name, os.ErrNotExist)
	if l.Kind != "veth" {
		return nil, none
	}
	peer, err := c.LinkAt(l.Parent)
	if err != nil {
		return nil, err
	}
	id, err := c.NSID(ns)
	if err != nil {
		return nil, err
	}
	if peer.Kind != "veth" || peer.Parent != l.Index || id < 0 || peer.LinkNetNSID != id {
		return nil, none
	}
	return peer, nil
}
