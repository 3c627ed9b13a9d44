package rtnl

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// A Kind has the driver's settings of a link: [Bridge], [Veth], [Macvlan], [Ipvlan], [Vlan],
// [Dummy], [VRF] or [IFB]. A kernel without the driver rejects the link with unix.EOPNOTSUPP.
type Kind interface {
	kind() string                              // IFLA_INFO_KIND
	encode(ae *netlink.AttributeEncoder) error // IFLA_INFO_DATA
}

// decodeKind decodes IFLA_INFO_DATA of the kinds whose data we use.
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

// A Bridge connects links at the Ethernet layer.
type Bridge struct {
	VLANFiltering bool // each port takes part in its own VLANs only
}

func (Bridge) kind() string { return "bridge" }

// encode writes IFLA_BR_VLAN_FILTERING, include/uapi/linux/if_link.h, if it is on; the kernel's
// default is off.
func (b Bridge) encode(ae *netlink.AttributeEncoder) error {
	if b.VLANFiltering {
		ae.Uint8(unix.IFLA_BR_VLAN_FILTERING, 1)
	}
	return nil
}

// vethInfoPeer is VETH_INFO_PEER, include/uapi/linux/veth.h.
const vethInfoPeer = 1

// A Veth is one end of a pair; its peer is [LinkSpec.Peer]. Deleting one end, or its namespace,
// deletes the other end.
type Veth struct{}

func (Veth) kind() string                           { return "veth" }
func (Veth) encode(*netlink.AttributeEncoder) error { return nil }

// A Dummy drops all packets sent to it.
type Dummy struct{}

func (Dummy) kind() string                           { return "dummy" }
func (Dummy) encode(*netlink.AttributeEncoder) error { return nil }

// A Vlan is an 802.1Q sub-interface: its parent sends its packets with a VLAN tag.
type Vlan struct {
	ID int // 0 to 4094
}

func (Vlan) kind() string { return "vlan" }

// encode writes IFLA_VLAN_ID. It returns unix.EINVAL for a number that does not fit into 16 bits,
// or that 802.1Q reserves, such as 4095.
func (v Vlan) encode(ae *netlink.AttributeEncoder) error {
	if v.ID < 0 || v.ID > maxVLAN {
		return fmt.Errorf("VLAN %d: %w", v.ID, unix.EINVAL)
	}
	ae.Uint16(unix.IFLA_VLAN_ID, uint16(v.ID))
	return nil
}
