package rtnl

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ipv4ARPNotify is IPV4_DEVCONF_ARP_NOTIFY, include/uapi/linux/ip.h.
const ipv4ARPNotify = 22

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h.
const addrGenModeNone = 1

// encode returns the message for the link with that index, or with that name
// if the index is 0.
func (ch LinkChange) encode(index uint32, name string) ([]byte, error) {
	if ch.Name != nil {
		name = *ch.Name
	}
	if name != "" || ch.Name != nil {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	if err := fit32(deref(ch.MTU), deref(ch.TxQLen)); err != nil {
		return nil, err
	}
	flags, change := ch.flags()
	return encode(linkHeader(unix.AF_UNSPEC, index, flags, change), func(ae *netlink.AttributeEncoder) {
		ch.attributes(ae, name)
		if ch.ARPNotify != nil || ch.AddrGenModeNone {
			ae.Nested(unix.IFLA_AF_SPEC, ch.encodeFamilies)
		}
		if ch.Hairpin != nil || ch.Isolated != nil {
			ae.Nested(unix.IFLA_LINKINFO, ch.encodePort)
		}
		if ch.VLANFiltering != nil {
			ae.Nested(unix.IFLA_LINKINFO, ch.encodeBridge)
		}
	})
}

// flags returns the interface flags to have and those of them that count.
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
	return flags, change
}

func (ch LinkChange) attributes(ae *netlink.AttributeEncoder, name string) {
	if name != "" {
		ae.String(unix.IFLA_IFNAME, name)
	}
	if ch.MTU != nil {
		ae.Uint32(unix.IFLA_MTU, uint32(*ch.MTU))
	}
	if ch.MAC != nil {
		ae.Bytes(unix.IFLA_ADDRESS, ch.MAC)
	}
	if ch.Master != nil {
		ae.Uint32(unix.IFLA_MASTER, *ch.Master)
	}
	if ch.TxQLen != nil {
		ae.Uint32(unix.IFLA_TXQLEN, uint32(*ch.TxQLen))
	}
	if ch.Alias != nil {
		ae.Bytes(unix.IFLA_IFALIAS, []byte(*ch.Alias)) // no NUL: its end is its length
	}
	if ch.NS != nil {
		ae.Uint32(unix.IFLA_NET_NS_FD, uint32(ch.NS.FD()))
	}
}

// encodeFamilies writes what IPv4 and IPv6 keep for a link, which takes a
// setns and a file each when it is written to /proc/sys.
func (ch LinkChange) encodeFamilies(ae *netlink.AttributeEncoder) error {
	if ch.ARPNotify != nil {
		ae.Nested(unix.AF_INET, func(inet *netlink.AttributeEncoder) error {
			inet.Nested(unix.IFLA_INET_CONF, func(conf *netlink.AttributeEncoder) error {
				conf.Uint32(ipv4ARPNotify, number(*ch.ARPNotify))
				return nil
			})
			return nil
		})
	}
	if ch.AddrGenModeNone {
		ae.Nested(unix.AF_INET6, func(inet6 *netlink.AttributeEncoder) error {
			inet6.Uint8(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenModeNone)
			return nil
		})
	}
	return nil
}

func (ch LinkChange) encodePort(ae *netlink.AttributeEncoder) error {
	ae.String(unix.IFLA_INFO_SLAVE_KIND, "bridge")
	ae.Nested(unix.IFLA_INFO_SLAVE_DATA, func(port *netlink.AttributeEncoder) error {
		if ch.Hairpin != nil {
			port.Uint8(unix.IFLA_BRPORT_MODE, uint8(number(*ch.Hairpin)))
		}
		if ch.Isolated != nil {
			port.Uint8(unix.IFLA_BRPORT_ISOLATED, uint8(number(*ch.Isolated)))
		}
		return nil
	})
	return nil
}

func (ch LinkChange) encodeBridge(ae *netlink.AttributeEncoder) error {
	ae.String(unix.IFLA_INFO_KIND, "bridge")
	ae.Nested(unix.IFLA_INFO_DATA, func(bridge *netlink.AttributeEncoder) error {
		bridge.Uint8(unix.IFLA_BR_VLAN_FILTERING, uint8(number(*ch.VLANFiltering)))
		return nil
	})
	return nil
}

func number(is bool) uint32 {
	if is {
		return 1
	}
	return 0
}
