package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link.
type Addr struct {
	Prefix netip.Prefix // the address with the length of its network, host bits kept
	Peer   netip.Addr   // the other end of a point-to-point link; zero: none
	NoDAD  bool         // IPv6: usable at once, without duplicate detection

	// What the kernel tells, not asked for in NewAddr:
	Tentative bool // IPv6: duplicate detection runs
	DADFailed bool // IPv6: somebody else has it
	Permanent bool // it has no lifetime
}

// NewAddr gives a link an address, os.ErrExist if it has it.
func NewAddr(index uint32, a Addr) Op {
	return addrOp("add", index, a, unix.RTM_NEWADDR, create)
}

// ReplaceAddr gives a link an address, or the address it has the settings of a.
func ReplaceAddr(index uint32, a Addr) Op {
	return addrOp("replace", index, a, unix.RTM_NEWADDR, replace)
}

// DropAddr takes an address from a link, os.ErrNotExist if it has not got it.
func DropAddr(index uint32, a Addr) Op {
	return addrOp("delete", index, a, unix.RTM_DELADDR, ack)
}

// AddAddr gives a link an address; see [NewAddr].
func (c *Conn) AddAddr(index uint32, a Addr) error { return c.Do(NewAddr(index, a)) }

func addrOp(verb string, index uint32, a Addr, typ, flags uint16) Op {
	text := fmt.Sprintf("addr %s %s dev #%d", verb, a.Prefix, index)
	m, err := a.message(index)
	if err != nil {
		return Op{text: text, err: err}
	}
	data, err := m.MarshalBinary()
	return newOp(text, typ, flags, data, err)
}

func (a Addr) message(index uint32) (*rtnetlink.AddressMessage, error) {
	if !a.Prefix.IsValid() || a.Prefix.Addr().Is4In6() || a.Prefix.Addr().Zone() != "" {
		return nil, fmt.Errorf("address %s: %w", a.Prefix, unix.EINVAL)
	}
	m := &rtnetlink.AddressMessage{
		Family:       family(a.Prefix.Addr()),
		PrefixLength: uint8(a.Prefix.Bits()),
		Index:        index,
		Attributes:   &rtnetlink.AddressAttributes{},
	}
	at := m.Attributes
	at.Local = a.Prefix.Addr().AsSlice()
	at.Address = at.Local
	if a.Peer.IsValid() {
		at.Address = a.Peer.AsSlice()
	}
	if a.NoDAD {
		at.Flags = unix.IFA_F_NODAD
	}
	if a.Prefix.Addr().Is4() && a.Prefix.Bits() < 31 && !a.Peer.IsValid() {
		at.Broadcast = broadcast(a.Prefix)
	}
	return m, nil
}

// broadcast returns the last address of an IPv4 network.
func broadcast(p netip.Prefix) net.IP {
	b := p.Addr().As4()
	last := binary.BigEndian.Uint32(b[:]) | uint32(1<<(32-p.Bits())-1)
	return binary.BigEndian.AppendUint32(nil, last)
}

// Addrs returns the addresses of a link.
func (c *Conn) Addrs(index uint32) ([]Addr, error) {
	data, err := (&rtnetlink.AddressMessage{Index: index}).MarshalBinary()
	if err != nil {
		return nil, err
	}
	addrs, err := dump(c, request{typ: unix.RTM_GETADDR, data: data}, func(m message) (Addr, bool, error) {
		var a Addr
		of, err := a.decode(m.data)
		// A kernel before 4.20 gives the addresses of all links.
		return a, m.typ == unix.RTM_NEWADDR && of == index, err
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of link #%d: %w", index, err)
	}
	return addrs, nil
}

// decode reads an RTM_NEWADDR message and returns the index of its link.
func (a *Addr) decode(b []byte) (index uint32, err error) {
	var m rtnetlink.AddressMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return 0, err
	}
	at := m.Attributes
	if at == nil {
		return m.Index, nil
	}
	address, _ := netip.AddrFromSlice(at.Address)
	local, ok := netip.AddrFromSlice(at.Local)
	if !ok { // IPv6 without a peer has IFA_ADDRESS alone
		local = address
	}
	flags := at.Flags | uint32(m.Flags)
	*a = Addr{
		Prefix:    netip.PrefixFrom(local, int(m.PrefixLength)),
		NoDAD:     flags&unix.IFA_F_NODAD != 0,
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
