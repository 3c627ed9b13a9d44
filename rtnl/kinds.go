package rtnl

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Kind is what a driver wants to know about its link: [Bridge], [Veth],
// [Macvlan], [Vlan] or [Dummy].
type Kind interface {
	kind() string // IFLA_INFO_KIND
	encode(ae *netlink.AttributeEncoder) error
}

// decodeKind reads IFLA_INFO_DATA of the kinds that say something of use.
func decodeKind(kind string, l *Link, ad *netlink.AttributeDecoder) error {
	switch kind {
	case "bridge":
		return l.decodeBridge(ad)
	case "macvlan":
		return l.decodeMacvlan(ad)
	case "vlan":
		return l.decodeVlan(ad)
	}
	return nil
}

// A Bridge joins links at the Ethernet layer.
type Bridge struct {
	VLANFiltering bool // let each port take part in its own VLANs only
}

func (Bridge) kind() string { return "bridge" }

func (b Bridge) encode(ae *netlink.AttributeEncoder) error {
	if b.VLANFiltering {
		ae.Uint8(unix.IFLA_BR_VLAN_FILTERING, 1)
	}
	return nil
}

func (l *Link) decodeBridge(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() == unix.IFLA_BR_VLAN_FILTERING {
			l.VLANFiltering = ad.Uint8() != 0
		}
	}
	l.Data = Bridge{VLANFiltering: l.VLANFiltering}
	return ad.Err()
}

// A Veth is one end of a pair; its peer is [LinkSpec.Peer].
type Veth struct{}

func (Veth) kind() string                           { return "veth" }
func (Veth) encode(*netlink.AttributeEncoder) error { return nil }

// A Dummy drops what is sent to it.
type Dummy struct{}

func (Dummy) kind() string                           { return "dummy" }
func (Dummy) encode(*netlink.AttributeEncoder) error { return nil }

// A MacvlanMode says whom a macvlan may talk to.
type MacvlanMode uint32

// The modes: include/uapi/linux/if_link.h, enum macvlan_mode.
const (
	MacvlanPrivate  MacvlanMode = 1
	MacvlanVEPA     MacvlanMode = 2
	MacvlanBridge   MacvlanMode = 4
	MacvlanPassthru MacvlanMode = 8
)

// ParseMacvlanMode reads a mode by its name in ip(8); "" is bridge.
func ParseMacvlanMode(s string) (MacvlanMode, error) {
	switch s {
	case "", "bridge":
		return MacvlanBridge, nil
	case "private":
		return MacvlanPrivate, nil
	case "vepa":
		return MacvlanVEPA, nil
	case "passthru":
		return MacvlanPassthru, nil
	}
	return 0, fmt.Errorf("unknown macvlan mode: %q", s)
}

// A Macvlan is a sub-interface with a MAC address of its own.
type Macvlan struct {
	Mode MacvlanMode // 0: the kernel's choice, vepa
}

func (Macvlan) kind() string { return "macvlan" }

func (m Macvlan) encode(ae *netlink.AttributeEncoder) error {
	if m.Mode != 0 {
		ae.Uint32(unix.IFLA_MACVLAN_MODE, uint32(m.Mode))
	}
	return nil
}

func (l *Link) decodeMacvlan(ad *netlink.AttributeDecoder) error {
	var m Macvlan
	for ad.Next() {
		if ad.Type() == unix.IFLA_MACVLAN_MODE {
			m.Mode = MacvlanMode(ad.Uint32())
		}
	}
	l.Data = m
	return ad.Err()
}

// A Vlan is an 802.1Q sub-interface.
type Vlan struct {
	ID int // 0 to 4094
}

func (Vlan) kind() string { return "vlan" }

func (v Vlan) encode(ae *netlink.AttributeEncoder) error {
	if v.ID < 0 || v.ID > maxVLAN {
		return fmt.Errorf("VLAN %d: %w", v.ID, unix.EINVAL)
	}
	ae.Uint16(unix.IFLA_VLAN_ID, uint16(v.ID))
	return nil
}

func (l *Link) decodeVlan(ad *netlink.AttributeDecoder) error {
	var v Vlan
	for ad.Next() {
		if ad.Type() == unix.IFLA_VLAN_ID {
			v.ID = int(ad.Uint16())
		}
	}
	l.Data = v
	return ad.Err()
}
