package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link. NewAddr rejects the zero Addr. Flags:
// include/uapi/linux/if_addr.h, IFA_F_*.
type Addr struct {
	Prefix netip.Prefix // address and prefix length, host bits kept
	Peer   netip.Addr   // the other end of a point-to-point link; zero: none
	NoDAD  bool         // IPv6: usable at once, without duplicate detection

	// NoPrefixRoute keeps the kernel from adding the route to the address's network.
	NoPrefixRoute bool

	// Reported by the kernel; NewAddr ignores these:
	Tentative bool // IPv6: duplicate detection runs
	DADFailed bool // IPv6: another host has it
	Permanent bool // it has no lifetime
}

// NewAddr adds an address to a link; os.ErrExist if the link has it.
func NewAddr(index uint32, a Addr) Op {
	return addrOp("add", index, a, unix.RTM_NEWADDR, create)
}

// ReplaceAddr adds an address to a link, or changes the settings of an existing one to those of a.
func ReplaceAddr(index uint32, a Addr) Op {
	return addrOp("replace", index, a, unix.RTM_NEWADDR, replace)
}

// DropAddr deletes an address from a link; os.ErrNotExist if the link lacks it, or has it with
// another prefix length. Deleting the first IPv4 address of a network deletes all others of the
// network, unless the link's promote_secondaries is set.
func DropAddr(index uint32, a Addr) Op {
	return addrOp("delete", index, a, unix.RTM_DELADDR, ack)
}

// AddAddr adds an address to a link; see [NewAddr].
func (c *Conn) AddAddr(index uint32, a Addr) error { return c.Do(NewAddr(index, a)) }

func addrOp(verb string, index uint32, a Addr, typ netlink.HeaderType, flags netlink.HeaderFlags) Op {
	data, err := a.encode(index)
	return newOp(fmt.Sprintf("addr %s %s dev #%d", verb, a.Prefix, index), typ, flags, data, err)
}

// encode returns the message. IFA_LOCAL is the link's own address, IFA_ADDRESS the peer's, or the
// own address without a peer. The kernel sets no broadcast address by itself; a network of /31 or
// /32 has none (RFC 3021). The error is unix.EINVAL if a is not a valid address of a link.
func (a Addr) encode(index uint32) ([]byte, error) {
	local := a.Prefix.Addr()
	if !a.Prefix.IsValid() || local.Is4In6() || local.Zone() != "" {
		return nil, fmt.Errorf("address %s: %w", a.Prefix, unix.EINVAL)
	}
	attrs := &rtnetlink.AddressAttributes{Local: local.AsSlice(), Address: local.AsSlice(), Flags: a.flags()}
	if a.Peer.IsValid() {
		attrs.Address = a.Peer.AsSlice()
	}
	if local.Is4() && a.Prefix.Bits() < 31 && !a.Peer.IsValid() {
		attrs.Broadcast = broadcast(a.Prefix)
	}
	return (&rtnetlink.AddressMessage{
		Family: family(local), PrefixLength: uint8(a.Prefix.Bits()), Index: index, Attributes: attrs,
	}).MarshalBinary()
}

// flags returns the flags to set, IFA_F_* of include/uapi/linux/if_addr.h.
func (a Addr) flags() (flags uint32) {
	if a.NoDAD {
		flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return flags
}

// broadcast returns the last address of an IPv4 network.
func broadcast(p netip.Prefix) net.IP {
	b := p.Addr().As4()
	last := binary.BigEndian.Uint32(b[:]) | uint32(1<<(32-p.Bits())-1)
	return binary.BigEndian.AppendUint32(nil, last)
}

// Addrs returns the addresses of a link of both families. The error for a missing link is
// os.ErrNotExist; a kernel before 4.20 reports no addresses instead.
func (c *Conn) Addrs(index uint32) ([]Addr, error) {
	all, err := c.addrs(index)
	if err != nil {
		return nil, fmt.Errorf("addresses of link #%d: %w", index, err)
	}
	return all[index], nil // a kernel before 4.20 returns the addresses of all links
}

// AllAddrs returns the addresses of all links of both families, by the index of the link.
func (c *Conn) AllAddrs() (map[uint32][]Addr, error) {
	all, err := c.addrs(0)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	return all, nil
}

// addrs dumps the addresses of a link; index 0: of all links.
func (c *Conn) addrs(index uint32) (map[uint32][]Addr, error) {
	data, err := (&rtnetlink.AddressMessage{Index: index}).MarshalBinary()
	if err != nil {
		return nil, err
	}
	ms, err := c.dump(request(unix.RTM_GETADDR, 0, data))
	if err != nil {
		return nil, err
	}
	return decodeAddrs(ms)
}

// decodeAddrs returns the addresses of a dump by the index of the link.
func decodeAddrs(ms []netlink.Message) (map[uint32][]Addr, error) {
	all := map[uint32][]Addr{}
	for _, m := range ms {
		var a Addr
		link, err := a.decode(m.Data)
		if err != nil {
			return nil, err
		}
		all[link] = append(all[link], a)
	}
	return all, nil
}

// decode decodes an RTM_NEWADDR message and returns the index of its link.
func (a *Addr) decode(b []byte) (index uint32, err error) {
	var m rtnetlink.AddressMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return 0, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m.Attributes == nil {
		return 0, errMalformed
	}
	address, _ := netip.AddrFromSlice(m.Attributes.Address)
	local, _ := netip.AddrFromSlice(m.Attributes.Local)
	if !local.IsValid() { // IPv6 without a peer has only IFA_ADDRESS
		local = address
	}
	flags := uint32(m.Flags) | m.Attributes.Flags // the attribute has all flags, the header the first eight
	*a = Addr{
		Prefix: netip.PrefixFrom(local, int(m.PrefixLength)),
		NoDAD:  flags&unix.IFA_F_NODAD != 0,

		NoPrefixRoute: flags&unix.IFA_F_NOPREFIXROUTE != 0,

		Tentative: flags&unix.IFA_F_TENTATIVE != 0,
		DADFailed: flags&unix.IFA_F_DADFAILED != 0,
		Permanent: flags&unix.IFA_F_PERMANENT != 0,
	}
	if address != local {
		a.Peer = address
	}
	return m.Index, nil
}

// family returns AF_INET or AF_INET6.
func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
