package rtnl

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// A Kind is what a driver wants to know about its link: [Bridge], [Veth],
// [Macvlan], [Ipvlan], [Vlan], [Dummy], [VRF] or [IFB]. A link of a kind that the
// kernel was built without is refused with unix.EOPNOTSUPP.
type Kind interface {
	kind() string                              // IFLA_INFO_KIND
	encode(ae *netlink.AttributeEncoder) error // IFLA_INFO_DATA
}

// decodeKind reads IFLA_INFO_DATA of the kinds that say something of use.
func (l *Link) decodeKind(data []byte) {
	switch l.Kind {
	case "bridge":
		l.VLANFiltering = number(nlconn.Attribute(data, unix.IFLA_BR_VLAN_FILTERING)) != 0
		l.Data = Bridge{VLANFiltering: l.VLANFiltering}
	case "macvlan":
		l.Data = decodeMacvlan(data)
	case "ipvlan":
		l.Data = decodeIpvlan(data)
	case "vlan":
		l.Data = Vlan{ID: int(number(nlconn.Attribute(data, unix.IFLA_VLAN_ID)))}
	case "vrf":
		l.Data = VRF{Table: int(number(nlconn.Attribute(data, unix.IFLA_VRF_TABLE)))}
	}
}

// A Bridge joins links at the Ethernet layer.
type Bridge struct {
	VLANFiltering bool // let each port take part in its own VLANs only
}

func (Bridge) kind() string { return "bridge" }

// encode writes IFLA_BR_VLAN_FILTERING, include/uapi/linux/if_link.h. Not to
// filter is what a new bridge does, and so goes without saying.
func (b Bridge) encode(ae *netlink.AttributeEncoder) error {
	if b.VLANFiltering {
		ae.Uint8(unix.IFLA_BR_VLAN_FILTERING, 1)
	}
	return nil
}

// vethInfoPeer is VETH_INFO_PEER, include/uapi/linux/veth.h.
const vethInfoPeer = 1

// A Veth is one end of a pair; its peer is [LinkSpec.Peer]. Deleting one end, or
// the namespace it is in, deletes the other.
type Veth struct{}

func (Veth) kind() string                           { return "veth" }
func (Veth) encode(*netlink.AttributeEncoder) error { return nil }

// A Dummy drops what is sent to it.
type Dummy struct{}

func (Dummy) kind() string                           { return "dummy" }
func (Dummy) encode(*netlink.AttributeEncoder) error { return nil }

// A Vlan is an 802.1Q sub-interface: what it sends, its parent sends with a tag.
type Vlan struct {
	ID int // 0 to 4094
}

func (Vlan) kind() string { return "vlan" }

// encode writes IFLA_VLAN_ID. It is unix.EINVAL for a number that would not
// fit into 16 bits, or that 802.1Q keeps for itself, as 4095.
func (v Vlan) encode(ae *netlink.AttributeEncoder) error {
	if v.ID < 0 || v.ID > maxVLAN {
		return fmt.Errorf("VLAN %d: %w", v.ID, unix.EINVAL)
	}
	ae.Uint16(unix.IFLA_VLAN_ID, uint16(v.ID))
	return nil
}
