package rtnl

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// A PortState is the state of a bridge port.
type PortState uint8

// The states: include/uapi/linux/if_bridge.h, BR_STATE_*. Without the spanning tree protocol a port
// is disabled until it has a carrier and the bridge is up; then it is forwarding.
// forwards from then on.
const (
	PortDisabled PortState = iota
	PortListening
	PortLearning
	PortForwarding
	PortBlocking
)

// A Link is a network interface as the kernel reported it: IFLA_* of include/uapi/linux/if_link.h.
// Attributes that the kernel did not report are zero.
type Link struct {
	Index  uint32
	Parent uint32 // index of the parent link, or of the peer of a veth; 0: none
	Master uint32 // the bridge, bond or VRF it belongs to; 0: none

	// PeerNS is set if Parent is an index in another namespace, whose ID here is LinkNetNSID.
	// LinkNetNSID is -1 if there is none.
	PeerNS      bool
	LinkNetNSID int

	Name   string
	Kind   string // as in ip(8); empty for hardware and lo
	Alias  string // any text, at most 255 bytes
	MTU    int    // bytes
	TxQLen int    // packets
	Group  uint32 // 0: none
	MAC    net.HardwareAddr
	Flags  uint32 // IFF_*, netdevice(7)
	Up     bool   // set up by the administrator
	OperUp bool   // able to carry packets (operstate up)

	// Of hardware, since Linux 5.6 and 5.14: the permanent address, and the device's name on the
	// bus, such as 0000:3b:00.2 or virtio0.
	PermMAC net.HardwareAddr
	Device  string

	Promisc  bool
	AllMulti bool

	// Of a bridge port; PortState is PortDisabled for other links.
	PortState PortState
	Hairpin   bool // packets may leave by the port they came from
	Isolated  bool // talks only to ports that are not isolated

	// Settings of the families that the link has; zero without the family. AcceptRA is accept_ra: 1
	// accepts IPv6 router advertisements while the link does not forward IPv6, 2 always.
	AcceptRA      uint32
	Off4, Off6    bool // forwarding of the link is 0
	RouteLocalnet bool // packets from and to 127.0.0.0/8 may use it

	VLANFiltering bool // of a bridge
	Data          Kind // the kind's own attributes; nil if we use none of them
}

// Link returns the link with that name or alternative name; os.ErrNotExist if there is none.
func (c *Conn) Link(name string) (*Link, error) {
	l, err := c.link(getByName(name))
	if len(name) >= unix.IFNAMSIZ && errors.Is(err, unix.EINVAL) {
		err = os.ErrNotExist // the kernel has no alternative names
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return l, nil
}

// LinkAt returns the link with that index, os.ErrNotExist if there is none.
func (c *Conn) LinkAt(index uint32) (*Link, error) {
	l, err := c.link(getByIndex(index))
	if err != nil {
		return nil, fmt.Errorf("link #%d: %w", index, err)
	}
	return l, nil
}

// Links returns all links of the namespace, in the kernel's order. Links that are created or
// deleted meanwhile may be included or not.
func (c *Conn) Links() ([]Link, error) { return c.LinksWith(nil) }

// LinksWith is [Conn.Links] for links whose message contains these bytes, such as an address. Other
// links are not decoded, since decoding takes most of the time.
func (c *Conn) LinksWith(text []byte) ([]Link, error) {
	ms, err := c.dump(getLink(0, ""))
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	ms = slices.DeleteFunc(ms, func(m netlink.Message) bool { return !bytes.Contains(m.Data, text) })
	return decodeLinks(ms)
}

// decodeLinks returns the links of a dump.
func decodeLinks(ms []netlink.Message) ([]Link, error) {
	links := make([]Link, 0, len(ms))
	for _, m := range ms {
		var l Link
		if err := l.decode(m.Data); err != nil {
			return nil, fmt.Errorf("links: %w", err)
		}
		links = append(links, l)
	}
	return links, nil
}

// Peer returns the other end of a veth pair; its indexes are those of its own namespace. The error
// is os.ErrNotExist if that namespace has ended: the kernel deletes the links of a namespace some
// time later.
func (c *Conn) Peer(l *Link) (*Link, error) {
	m := rtnetlink.LinkMessage{Index: l.Parent, Attributes: &rtnetlink.LinkAttributes{ExtMask: new(uint32(rtextSkipStats))}}
	data, err := marshal(&m, func(ae *netlink.AttributeEncoder) {
		if l.PeerNS {
			ae.Int32(unix.IFLA_TARGET_NETNSID, int32(l.LinkNetNSID))
		}
	})
	peer, err := c.link(request(unix.RTM_GETLINK, 0, data), err)
	if errors.Is(err, unix.EINVAL) { // no namespace has the ID, or it is ending
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("peer of %s: %w", l.Name, err)
	}
	return peer, nil
}

// link sends the request of getByName or getByIndex and decodes its one answer; err is that of
// getByName or getByIndex.
func (c *Conn) link(req netlink.Message, err error) (*Link, error) {
	if err != nil {
		return nil, err
	}
	ms, err := c.get(req)
	if err != nil {
		return nil, err
	}
	return decodeLink(ms)
}

// decodeLink decodes the answer to a request for one link.
func decodeLink(ms []netlink.Message) (*Link, error) {
	if len(ms) != 1 {
		return nil, errMalformed
	}
	var l Link
	if err := l.decode(ms[0].Data); err != nil {
		return nil, err
	}
	return &l, nil
}

// longestAlt is the length of the longest alternative name: include/uapi/linux/if.h, ALTIFNAMSIZ.
const longestAlt = 127

// getByName builds a request by name. A name of 16 bytes or more can only be an alternative name,
// which kernels before 5.5 do not have.
func getByName(name string) (netlink.Message, error) {
	if name == "" || len(name) > longestAlt {
		return netlink.Message{}, os.ErrNotExist
	}
	return getLink(0, name), nil
}

// getByIndex builds a request by index. No link has index 0, and the kernel rejects it as a request
// without an index (EINVAL).
func getByIndex(index uint32) (netlink.Message, error) {
	if index == 0 {
		return netlink.Message{}, os.ErrNotExist
	}
	return getLink(index, ""), nil
}

// rtextSkipStats is RTEXT_FILTER_SKIP_STATS, include/uapi/linux/rtnetlink.h: the counters of a link
// are as long as all other attributes, and the library rejects counters of an unknown length.
const rtextSkipStats = 1 << 3

// getLink builds a request for a link by index or by name, or for all links.
func getLink(index uint32, name string) netlink.Message {
	m := rtnetlink.LinkMessage{Index: index, Attributes: &rtnetlink.LinkAttributes{ExtMask: new(uint32(rtextSkipStats))}}
	if len(name) < unix.IFNAMSIZ {
		m.Attributes.Name = name
	}
	data, err := marshal(&m, func(ae *netlink.AttributeEncoder) {
		if len(name) >= unix.IFNAMSIZ {
			ae.String(unix.IFLA_ALT_IFNAME, name)
		}
	})
	if err != nil {
		panic(err) // a number and a short name can always be encoded
	}
	return request(unix.RTM_GETLINK, 0, data)
}

// decode decodes an RTM_NEWLINK message and ignores unknown attributes.
func (l *Link) decode(b []byte) error {
	var m rtnetlink.LinkMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	attrs := cmp.Or(m.Attributes, &rtnetlink.LinkAttributes{})
	*l = Link{
		Index: m.Index, Parent: attrs.Type, Master: deref(attrs.Master), LinkNetNSID: -1,
		Name: attrs.Name, Alias: deref(attrs.Alias), MTU: int(attrs.MTU), TxQLen: int(deref(attrs.TxQueueLen)),
		Group: deref(attrs.NetDevGroup), MAC: net.HardwareAddr(attrs.Address), Flags: m.Flags,
		Up: m.Flags&unix.IFF_UP != 0, OperUp: attrs.OperationalState == rtnetlink.OperStateUp,
		Promisc: m.Flags&unix.IFF_PROMISC != 0, AllMulti: m.Flags&unix.IFF_ALLMULTI != 0,
	}
	if info := attrs.Info; info != nil {
		l.Kind = info.Kind
		l.decodeKind(linkData(info.Data))
		if info.SlaveKind == "bridge" {
			l.decodePort(linkData(info.SlaveData))
		}
	}
	l.decodeOthers(b[unix.SizeofIfInfomsg:])
	return nil
}

// linkData returns the raw attributes of the driver. The library decodes them only for registered
// drivers. We register none: that takes time at every start of the program, and the library's
// macvlan driver loses the attributes after it.
func linkData(d rtnetlink.LinkDriver) []byte {
	if data, ok := d.(*rtnetlink.LinkData); ok {
		return data.Data
	}
	return nil
}

// decodeOthers decodes the attributes that the library does not know.
func (l *Link) decodeOthers(attrs []byte) {
	for typ, v := range nlconn.Attributes(attrs) {
		switch typ {
		case unix.IFLA_PERM_ADDRESS:
			l.PermMAC = bytes.Clone(v)
		case unix.IFLA_PARENT_DEV_NAME:
			l.Device = cString(v)
		case unix.IFLA_LINK_NETNSID:
			l.LinkNetNSID, l.PeerNS = int(int32(number(v))), true
		case unix.IFLA_AF_SPEC:
			conf4 := nlconn.Attribute(v, unix.AF_INET, unix.IFLA_INET_CONF)
			conf6 := nlconn.Attribute(v, unix.AF_INET6, unix.IFLA_INET6_CONF)
			l.AcceptRA = setting(conf6, acceptRA)
			l.Off4, l.Off6 = conf4 != nil && setting(conf4, forwarding) == 0, conf6 != nil && setting(conf6, forwarding) == 0
			l.RouteLocalnet = setting(conf4, routeLocalnet-1) != 0
		}
	}
}

// acceptRA is DEVCONF_ACCEPT_RA, include/uapi/linux/ipv6.h, and routeLocalnet IPV4_DEVCONF_ROUTE_LOCALNET,
// include/uapi/linux/ip.h, which counts from 1. In both lists forwarding is the first.
const (
	forwarding    = 0
	acceptRA      = 3
	routeLocalnet = 26
)

// setting returns a value of IFLA_INET_CONF or IFLA_INET6_CONF; 0 if the kernel has none with that
// index.
func setting(conf []byte, index int) uint32 {
	if len(conf) < 4*(index+1) {
		return 0
	}
	return number(conf[4*index : 4*(index+1)])
}

// decodePort decodes what a bridge reports about its port: IFLA_BRPORT_*,
// include/uapi/linux/if_link.h.
func (l *Link) decodePort(data []byte) {
	for typ, v := range nlconn.Attributes(data) {
		switch typ {
		case unix.IFLA_BRPORT_STATE:
			l.PortState = PortState(number(v))
		case unix.IFLA_BRPORT_MODE:
			l.Hairpin = number(v) != 0
		case unix.IFLA_BRPORT_ISOLATED:
			l.Isolated = number(v) != 0
		}
	}
}
