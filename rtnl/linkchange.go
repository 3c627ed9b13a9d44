package rtnl

import (
	"net"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ipv4ARPNotify is IPV4_DEVCONF_ARP_NOTIFY, include/uapi/linux/ip.h.
const ipv4ARPNotify = 22

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h.
const addrGenModeNone = 1

// encode returns the message for the link with that index. If the link moves to another namespace,
// the name is its name there, which saves a second change and avoids a name conflict in between.
// Errors are unix.EINVAL for names and numbers that the kernel would interpret as others.
func (ch LinkChange) encode(index uint32) ([]byte, error) {
	if ch.Name != nil {
		if err := checkName(*ch.Name); err != nil {
			return nil, err
		}
	}
	if err := check32(deref(ch.MTU), deref(ch.TxQLen)); err != nil {
		return nil, err
	}
	info, err := ch.info()
	if err != nil {
		return nil, err
	}
	m := rtnetlink.LinkMessage{Index: index, Attributes: &rtnetlink.LinkAttributes{
		Name: deref(ch.Name), Address: net.HardwareAddr(ch.MAC), Master: ch.Master, Info: info,
	}}
	if ch.NS != nil {
		m.Attributes.NetNS = rtnetlink.NetNSForFD(uint32(ch.NS.FD()))
	}
	m.Flags, m.Change = ch.flags()
	return marshal(&m, ch.others)
}

// flags returns the values of the interface flags, and the mask of the flags to change.
func (ch LinkChange) flags() (flags, change uint32) {
	set := func(want *bool, flag uint32) {
		if want == nil {
			return
		}
		change |= flag
		if *want {
			flags |= flag
		}
	}
	set(ch.Up, unix.IFF_UP)
	set(ch.Promisc, unix.IFF_PROMISC)
	set(ch.AllMulti, unix.IFF_ALLMULTI)
	if ch.ARP != nil {
		set(new(!*ch.ARP), unix.IFF_NOARP)
	}
	return flags, change
}

// others writes what the library does not: an MTU of 0, so that the kernel rejects it; an alias
// without a zero byte at the end, which would become part of the alias; and attributes that the
// library cannot encode.
func (ch LinkChange) others(ae *netlink.AttributeEncoder) {
	if ch.MTU != nil {
		ae.Uint32(unix.IFLA_MTU, uint32(*ch.MTU))
	}
	if ch.TxQLen != nil {
		ae.Uint32(unix.IFLA_TXQLEN, uint32(*ch.TxQLen))
	}
	if ch.Alias != nil {
		ae.Bytes(unix.IFLA_IFALIAS, []byte(*ch.Alias))
	}
	if ch.Group != nil {
		ae.Uint32(unix.IFLA_GROUP, *ch.Group)
	}
	if ch.ARPNotify != nil || ch.AddrGenModeNone {
		nest(ae, unix.IFLA_AF_SPEC, ch.families)
	}
}

// families writes the IPv4 and IPv6 settings of a link. Writing them to /proc/sys would take a
// setns and a file for each.
func (ch LinkChange) families(ae *netlink.AttributeEncoder) {
	if ch.ARPNotify != nil {
		nest(ae, unix.AF_INET, func(ae *netlink.AttributeEncoder) {
			nest(ae, unix.IFLA_INET_CONF, func(ae *netlink.AttributeEncoder) {
				ae.Uint32(ipv4ARPNotify, uint32(oneZero(*ch.ARPNotify)))
			})
		})
	}
	if ch.AddrGenModeNone {
		nest(ae, unix.AF_INET6, func(ae *netlink.AttributeEncoder) {
			ae.Uint8(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenModeNone)
		})
	}
}

// info returns the changes for a bridge, or for the bridge of a port; nil: none. The kernel passes
// a port's changes to the master that the link had before the message, and returns unix.EOPNOTSUPP
// if there is none; so one message cannot make a link a port and set its flags. A kernel without
// CONFIG_BRIDGE_VLAN_FILTERING also returns unix.EOPNOTSUPP.
func (ch LinkChange) info() (*rtnetlink.LinkInfo, error) {
	switch {
	case ch.VLANFiltering != nil:
		data, err := encode(nil, func(ae *netlink.AttributeEncoder) {
			ae.Uint8(unix.IFLA_BR_VLAN_FILTERING, oneZero(*ch.VLANFiltering))
		})
		return &rtnetlink.LinkInfo{Kind: "bridge", Data: &rtnetlink.LinkData{Name: "bridge", Data: data}}, err
	case ch.Hairpin != nil || ch.Isolated != nil:
		data, err := encode(nil, func(ae *netlink.AttributeEncoder) {
			if ch.Hairpin != nil {
				ae.Uint8(unix.IFLA_BRPORT_MODE, oneZero(*ch.Hairpin))
			}
			if ch.Isolated != nil {
				ae.Uint8(unix.IFLA_BRPORT_ISOLATED, oneZero(*ch.Isolated))
			}
		})
		return &rtnetlink.LinkInfo{SlaveKind: "bridge", SlaveData: &rtnetlink.LinkData{Name: "bridge", Data: data, Slave: true}}, err
	}
	return nil, nil
}

// oneZero encodes a setting: 1 is on.
func oneZero(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}
