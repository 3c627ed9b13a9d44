package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/mac"
	"cnibox/internal/netlink"
)

// A PortState is the state of a bridge port.
type PortState uint8

// The states: include/uapi/linux/if_bridge.h, BR_STATE_*. Without the spanning
// tree protocol a port is disabled until it has a carrier and the bridge is up, and
// forwards from then on.
const (
	PortDisabled PortState = iota
	PortListening
	PortLearning
	PortForwarding
	PortBlocking
)

// A Link is a network interface as the kernel described it when it was asked:
// IFLA_* of include/uapi/linux/if_link.h. What the kernel did not tell is zero.
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
	Group  uint32 // 0: none
	MAC    mac.Addr
	Flags  uint32 // IFF_*, netdevice(7)
	Up     bool   // set up by the administrator
	OperUp bool   // and able to carry packets (operstate up)

	// Of hardware, and not before Linux 5.6 and 5.14: the address it was made with, and
	// its device's name on the bus, as 0000:3b:00.2 or virtio0.
	PermMAC mac.Addr
	Device  string

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

// Links returns all links of the namespace, in the kernel's order. Links that
// come or go meanwhile may be in it or not.
func (c *Conn) Links() ([]Link, error) {
	var links []Link
	err := c.dump(getLink(0, nil), func(m netlink.Message) error {
		var l Link
		if err := l.decode(m.Data); err != nil || m.Type != unix.RTM_NEWLINK {
			return err
		}
		links = append(links, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	return links, nil
}

// link sends the request that getByName or getByIndex made, unless they had an
// error, and reads the one link that answers it.
func (c *Conn) link(r netlink.Request, err error) (*Link, error) {
	if err != nil {
		return nil, err
	}
	var l Link
	if err := c.get(r, func(m netlink.Message) error { return l.decode(m.Data) }); err != nil {
		return nil, err
	}
	return &l, nil
}

// longestAlt is the longest alternative name: include/uapi/linux/if.h, ALTIFNAMSIZ.
const longestAlt = 127

// getByName asks for a link by name. A name of 16 bytes and more can only be an
// alternative one, which kernels before 5.5 do not know.
func getByName(name string) (netlink.Request, error) {
	attr := uint16(unix.IFLA_IFNAME)
	if len(name) >= unix.IFNAMSIZ {
		attr = unix.IFLA_ALT_IFNAME
	}
	if name == "" || len(name) > longestAlt {
		return netlink.Request{}, os.ErrNotExist
	}
	var by netlink.Buf
	by.Text(attr, name)
	return getLink(0, by), nil
}

// getByIndex asks for a link by index. 0 is no link, but for the kernel a request
// without an index, which it calls invalid.
func getByIndex(index uint32) (netlink.Request, error) {
	if index == 0 {
		return netlink.Request{}, os.ErrNotExist
	}
	return getLink(index, nil), nil
}

// rtextSkipStats is RTEXT_FILTER_SKIP_STATS, include/uapi/linux/rtnetlink.h: the
// counters of a link are as long as all the rest.
const rtextSkipStats = 1 << 3

// getLink asks for a link by its index, or by attributes, or for all.
func getLink(index uint32, by netlink.Buf) netlink.Request {
	by.U32(unix.IFLA_EXT_MASK, rtextSkipStats)
	return netlink.Request{Type: unix.RTM_GETLINK, Data: append(linkHeader(unix.AF_UNSPEC, index, 0, 0), by...)}
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

// decode reads an RTM_NEWLINK message; attributes that we do not know pass.
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
	for a := netlink.Attrs(b[unix.SizeofIfInfomsg:]); a.Next(); {
		typ, v := a.Type, a.Value
		l.decodeAttribute(typ, v)
	}
	return nil
}

// operUp is IF_OPER_UP, include/uapi/linux/if.h.
const operUp = 6

// decodeAttribute reads one IFLA_* attribute. Nothing of it is kept but copies:
// the message is overwritten by the next.
func (l *Link) decodeAttribute(typ uint16, v []byte) {
	switch typ {
	case unix.IFLA_IFNAME:
		l.Name = netlink.Text(v)
	case unix.IFLA_IFALIAS:
		l.Alias = netlink.Text(v)
	case unix.IFLA_MTU:
		l.MTU = int(netlink.Number(v))
	case unix.IFLA_TXQLEN:
		l.TxQLen = int(netlink.Number(v))
	case unix.IFLA_GROUP:
		l.Group = netlink.Number(v)
	case unix.IFLA_ADDRESS, unix.IFLA_PERM_ADDRESS:
		to := &l.MAC
		if typ == unix.IFLA_PERM_ADDRESS {
			to = &l.PermMAC
		}
		*to = append(mac.Addr(nil), v...)
	case unix.IFLA_PARENT_DEV_NAME:
		l.Device = netlink.Text(v)
	case unix.IFLA_LINK:
		l.Parent = netlink.Number(v)
	case unix.IFLA_LINK_NETNSID:
		l.LinkNetNSID, l.PeerNS = int(int32(netlink.Number(v))), true
	case unix.IFLA_MASTER:
		l.Master = netlink.Number(v)
	case unix.IFLA_OPERSTATE:
		l.OperUp = netlink.Number(v) == operUp
	case unix.IFLA_LINKINFO:
		l.decodeInfo(v)
	}
}

// decodeInfo reads IFLA_LINKINFO, in which the kernel puts kinds before data.
func (l *Link) decodeInfo(info []byte) {
	var port string
	for a := netlink.Attrs(info); a.Next(); {
		typ, v := a.Type, a.Value
		switch typ {
		case unix.IFLA_INFO_KIND:
			l.Kind = netlink.Text(v)
		case unix.IFLA_INFO_DATA:
			l.decodeKind(v)
		case unix.IFLA_INFO_SLAVE_KIND:
			port = netlink.Text(v)
		case unix.IFLA_INFO_SLAVE_DATA:
			if port == "bridge" {
				l.decodePort(v)
			}
		}
	}
}

// decodePort reads what a bridge tells about its port: IFLA_BRPORT_*,
// include/uapi/linux/if_link.h.
func (l *Link) decodePort(data []byte) {
	for a := netlink.Attrs(data); a.Next(); {
		typ, v := a.Type, a.Value
		switch typ {
		case unix.IFLA_BRPORT_STATE:
			l.PortState = PortState(netlink.Number(v))
		case unix.IFLA_BRPORT_MODE:
			l.Hairpin = netlink.Number(v) != 0
		case unix.IFLA_BRPORT_ISOLATED:
			l.Isolated = netlink.Number(v) != 0
		}
	}
}
