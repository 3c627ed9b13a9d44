package rtnl

import (
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// A VRF is a routing domain: links with this master use its table.
type VRF struct {
	Table int // 1 and up
}

func (VRF) kind() string { return "vrf" }

// encode writes IFLA_VRF_TABLE, include/uapi/linux/if_link.h. The error is unix.EINVAL for an
// invalid table.
func (v VRF) encode(ae *netlink.AttributeEncoder) error {
	if v.Table <= 0 || check32(v.Table) != nil {
		return fmt.Errorf("table %d: %w", v.Table, unix.EINVAL)
	}
	ae.Uint32(unix.IFLA_VRF_TABLE, uint32(v.Table))
	return nil
}

// An IFB receives packets that filters redirect to it, and returns them where it would send them.
// It can queue the packets that a link receives.
type IFB struct{}

func (IFB) kind() string                           { return "ifb" }
func (IFB) encode(*netlink.AttributeEncoder) error { return nil }

// NSID returns the ID of another namespace in the socket's namespace; [Link.LinkNetNSID] is such an
// ID. It is -1 if there is none, as when no link leads there.
func (c *Conn) NSID(ns *netns.NS) (int, error) {
	data, err := encode(make([]byte, nsidHeader), func(ae *netlink.AttributeEncoder) { ae.Uint32(netnsaFD, uint32(ns.FD())) })
	var ms []netlink.Message
	if err == nil {
		ms, err = c.get(request(unix.RTM_GETNSID, 0, data))
	}
	if err != nil {
		return -1, fmt.Errorf("number of a network namespace: %w", err)
	}
	for _, m := range ms {
		if id := nsidOf(m); id >= 0 {
			return id, nil
		}
	}
	return -1, nil
}

// VethPeer returns the peer of the veth l; l is in ns, and the peer in the socket's namespace. The
// error is os.ErrNotExist if l is not such a veth. Each namespace counts indexes by itself, so the
// link with the peer's index must have l as its peer, in ns.
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
