package rtnl

import (
	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
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
	return encode(linkHeader(unix.AF_UNSPEC, index, flags, change), func(b *netlink.Buf) {
		ch.attributes(b, name)
		if ch.ARPNotify != nil || ch.AddrGenModeNone {
			b.Nest(unix.IFLA_AF_SPEC, func() { ch.encodeFamilies(b) })
		}
		if ch.Hairpin != nil || ch.Isolated != nil {
			b.Nest(unix.IFLA_LINKINFO, func() { ch.encodePort(b) })
		}
		if ch.VLANFiltering != nil {
			b.Nest(unix.IFLA_LINKINFO, func() { ch.encodeBridge(b) })
		}
	}), nil
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

// attributes writes what links of all kinds have. An empty name stays; one with
// NS is the name in the other namespace, which spares a second change and the
// clash of names in between.
func (ch LinkChange) attributes(b *netlink.Buf, name string) {
	if name != "" {
		b.Text(unix.IFLA_IFNAME, name)
	}
	if ch.MTU != nil {
		b.U32(unix.IFLA_MTU, uint32(*ch.MTU))
	}
	if ch.MAC != nil {
		b.Bytes(unix.IFLA_ADDRESS, ch.MAC)
	}
	if ch.Master != nil {
		b.U32(unix.IFLA_MASTER, *ch.Master)
	}
	if ch.TxQLen != nil {
		b.U32(unix.IFLA_TXQLEN, uint32(*ch.TxQLen))
	}
	if ch.Alias != nil {
		b.Bytes(unix.IFLA_IFALIAS, []byte(*ch.Alias)) // no NUL: its end is its length
	}
	if ch.Group != nil {
		b.U32(unix.IFLA_GROUP, *ch.Group)
	}
	if ch.NS != nil {
		b.U32(unix.IFLA_NET_NS_FD, uint32(ch.NS.FD()))
	}
}

// encodeFamilies writes what IPv4 and IPv6 keep for a link, which takes a
// setns and a file each when it is written to /proc/sys.
func (ch LinkChange) encodeFamilies(b *netlink.Buf) {
	if ch.ARPNotify != nil {
		b.Nest(unix.AF_INET, func() {
			b.Nest(unix.IFLA_INET_CONF, func() { b.U32(ipv4ARPNotify, number(*ch.ARPNotify)) })
		})
	}
	if ch.AddrGenModeNone {
		b.Nest(unix.AF_INET6, func() { b.U8(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenModeNone) })
	}
}

// encodePort writes IFLA_BRPORT_*. The kernel hands it to the master that the link
// has before the message, and refuses it with unix.EOPNOTSUPP if there is none: so a
// link cannot be made a port and get its flags in one message.
func (ch LinkChange) encodePort(b *netlink.Buf) {
	b.Text(unix.IFLA_INFO_SLAVE_KIND, "bridge")
	b.Nest(unix.IFLA_INFO_SLAVE_DATA, func() {
		if ch.Hairpin != nil {
			b.U8(unix.IFLA_BRPORT_MODE, uint8(number(*ch.Hairpin)))
		}
		if ch.Isolated != nil {
			b.U8(unix.IFLA_BRPORT_ISOLATED, uint8(number(*ch.Isolated)))
		}
	})
}

// encodeBridge writes IFLA_BR_VLAN_FILTERING. A kernel without
// CONFIG_BRIDGE_VLAN_FILTERING refuses it with unix.EOPNOTSUPP.
func (ch LinkChange) encodeBridge(b *netlink.Buf) {
	b.Text(unix.IFLA_INFO_KIND, "bridge")
	b.Nest(unix.IFLA_INFO_DATA, func() {
		b.U8(unix.IFLA_BR_VLAN_FILTERING, uint8(number(*ch.VLANFiltering)))
	})
}

// number is a setting as the kernel writes it: 1 is on.
func number(is bool) uint32 {
	if is {
		return 1
	}
	return 0
}
