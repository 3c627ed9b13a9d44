package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A PortState is the state of a bridge port.
type PortState uint8

// The states: include/uapi/linux/if_bridge.h, BR_STATE_*.
const (
	PortDisabled PortState = iota
	PortListening
	PortLearning
	PortForwarding
	PortBlocking
)

// A Link is a network interface as the kernel describes it.
type Link struct {
	Index  uint32
	Parent uint32 // the link below, or the other end of a veth pair; 0: none
	Master uint32 // the bridge, bond or VRF it belongs to; 0: none

	// PeerNS tells that Parent counts in another namespace, the one that has
	// LinkNetNSID here. LinkNetNSID is -1 if there is none.
	PeerNS      bool
	LinkNetNSID int

	Name   string
	Kind   string // as in ip(8); empty for hardware and lo
	Alias  string // a text for people, at most 255 bytes
	MTU    int    // bytes
	TxQLen int    // packets
	MAC    net.HardwareAddr
	Flags  uint32 // IFF_*, netdevice(7)
	Up     bool   // set up by the administrator
	OperUp bool   // and able to carry packets (operstate up)

	Promisc  bool
	AllMulti bool

	// Of a bridge port; PortState is PortDisabled for other links.
	PortState PortState
	Hairpin   bool // packets may leave by the port they came from
	Isolated  bool // talks to ports that are not isolated, only

	VLANFiltering bool // of a bridge
	Data          Kind // what else the kind says of itself; nil if that is nothing we use
}

// Link returns the link of that name; alternative names count. The error is
// os.ErrNotExist if there is none.
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

// Links returns all links of the namespace.
func (c *Conn) Links() ([]Link, error) {
	r, err := getLink(0, func(*netlink.AttributeEncoder) {})
	if err != nil {
		return nil, err
	}
	links, err := dump(c, r, func(m message) (Link, bool, error) {
		var l Link
		err := l.decode(m.data)
		return l, m.typ == unix.RTM_NEWLINK, err
	})
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	return links, nil
}

func (c *Conn) link(r request, err error) (*Link, error) {
	if err != nil {
		return nil, err
	}
	var l Link
	if err := c.get(r, func(m message) error { return l.decode(m.data) }); err != nil {
		return nil, err
	}
	return &l, nil
}

// longestAlt is the longest alternative name: include/uapi/linux/if.h, ALTIFNAMSIZ.
const longestAlt = 127

// getByName asks for a link by name. A name of 16 bytes and more can only be an
// alternative one, which kernels before 5.5 do not know.
func getByName(name string) (request, error) {
	attr := uint16(unix.IFLA_IFNAME)
	if len(name) >= unix.IFNAMSIZ {
		attr = unix.IFLA_ALT_IFNAME
	}
	if name == "" || len(name) > longestAlt {
		return request{}, os.ErrNotExist
	}
	return getLink(0, func(ae *netlink.AttributeEncoder) { ae.String(attr, name) })
}

func getByIndex(index uint32) (request, error) {
	if index == 0 {
		return request{}, os.ErrNotExist
	}
	return getLink(index, func(*netlink.AttributeEncoder) {})
}

// rtextSkipStats is RTEXT_FILTER_SKIP_STATS, include/uapi/linux/rtnetlink.h: the
// counters of a link are as long as all the rest.
const rtextSkipStats = 1 << 3

func getLink(index uint32, attrs func(*netlink.AttributeEncoder)) (request, error) {
	data, err := encode(linkHeader(unix.AF_UNSPEC, index, 0, 0), func(ae *netlink.AttributeEncoder) {
		attrs(ae)
		ae.Uint32(unix.IFLA_EXT_MASK, rtextSkipStats)
	})
	return request{typ: unix.RTM_GETLINK, data: data}, err
}

// linkHeader returns a struct ifinfomsg; of flags, those in change count.
func linkHeader(family uint8, index, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], index)
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// decode reads an RTM_NEWLINK message. rtnetlink's LinkMessage does not serve:
// it has no IFLA_LINK_NETNSID, and it refuses the whole link when a kernel adds
// a counter to the statistics.
func (l *Link) decode(b []byte) error {
	if len(b) < unix.SizeofIfInfomsg {
		return errMalformed
	}
	*l = Link{
		Index:       binary.NativeEndian.Uint32(b[4:]),
		Flags:       binary.NativeEndian.Uint32(b[8:]),
		LinkNetNSID: -1,
	}
	l.Up = l.Flags&unix.IFF_UP != 0
	l.Promisc = l.Flags&unix.IFF_PROMISC != 0
	l.AllMulti = l.Flags&unix.IFF_ALLMULTI != 0
	ad, err := netlink.NewAttributeDecoder(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return err
	}
	for ad.Next() {
		l.decodeAttribute(ad)
	}
	return ad.Err()
}

// operUp is IF_OPER_UP, include/uapi/linux/if.h.
const operUp = 6

func (l *Link) decodeAttribute(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.IFLA_IFNAME:
		l.Name = ad.String()
	case unix.IFLA_IFALIAS:
		l.Alias = ad.String()
	case unix.IFLA_MTU:
		l.MTU = int(ad.Uint32())
	case unix.IFLA_TXQLEN:
		l.TxQLen = int(ad.Uint32())
	case unix.IFLA_ADDRESS:
		l.MAC = net.HardwareAddr(ad.Bytes())
	case unix.IFLA_LINK:
		l.Parent = ad.Uint32()
	case unix.IFLA_LINK_NETNSID:
		l.LinkNetNSID, l.PeerNS = int(ad.Int32()), true
	case unix.IFLA_MASTER:
		l.Master = ad.Uint32()
	case unix.IFLA_OPERSTATE:
		l.OperUp = ad.Uint8() == operUp
	case unix.IFLA_LINKINFO:
		ad.Nested(l.decodeInfo)
	}
}

// decodeInfo reads IFLA_LINKINFO, in which the kernel puts kinds before data.
func (l *Link) decodeInfo(ad *netlink.AttributeDecoder) error {
	var port string
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_INFO_KIND:
			l.Kind = ad.String()
		case unix.IFLA_INFO_DATA:
			ad.Nested(func(nad *netlink.AttributeDecoder) error { return decodeKind(l.Kind, l, nad) })
		case unix.IFLA_INFO_SLAVE_KIND:
			port = ad.String()
		case unix.IFLA_INFO_SLAVE_DATA:
			if port == "bridge" {
				ad.Nested(l.decodePort)
			}
		}
	}
	return ad.Err()
}

func (l *Link) decodePort(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_BRPORT_STATE:
			l.PortState = PortState(ad.Uint8())
		case unix.IFLA_BRPORT_MODE:
			l.Hairpin = ad.Uint8() != 0
		case unix.IFLA_BRPORT_ISOLATED:
			l.Isolated = ad.Uint8() != 0
		}
	}
	return ad.Err()
}
