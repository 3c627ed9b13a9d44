package dhcp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
)

// The types of DHCPv4 messages: RFC 2132 section 9.6.
const (
	discover4 = 1
	offer4    = 2
	request4  = 3
	ack4      = 5
	nak4      = 6
	release4  = 7
)

const (
	opRequest, opReply = 1, 2 // BOOTREQUEST, BOOTREPLY

	headerLen4 = 236        // bytes before the magic cookie: RFC 2131 section 2
	cookie4    = 0x63825363 // RFC 2131 section 3

	// Relays drop shorter messages: RFC 1542 section 2.1.
	shortest4 = 300

	// The longest message that we accept, in bytes, which optMaxSize announces. Without the option
	// servers send at most 576 bytes: RFC 2131 section 2.
	longest4 = 1500
)

var errNotDHCP = errors.New("not a DHCP message")

// A message4 is a DHCPv4 message: RFC 2131 section 2, without the fields that a client neither writes
// nor reads.
type message4 struct {
	op        byte // opRequest or opReply
	xid       uint32
	secs      uint16 // since the client began to ask
	broadcast bool   // answers must be broadcast
	client    netip.Addr
	yours     netip.Addr
	mac       net.HardwareAddr // chaddr, hlen bytes of it
	hardware  byte             // ARPHRD_*; 1: Ethernet
	options   options
}

func (m *message4) encode() []byte {
	b := make([]byte, headerLen4, shortest4)
	b[0], b[1] = m.op, m.hardware
	b[2] = byte(copy(b[28:44], m.mac))
	binary.BigEndian.PutUint32(b[4:], m.xid)
	binary.BigEndian.PutUint16(b[8:], m.secs)
	if m.broadcast {
		b[10] = 0x80
	}
	putAddr4(b[12:], m.client)
	putAddr4(b[16:], m.yours)
	b = m.options.encode(binary.BigEndian.AppendUint32(b, cookie4))
	for len(b) < shortest4 {
		b = append(b, optPad)
	}
	return b
}

// putAddr4 writes an address; the zero value is 0.0.0.0.
func putAddr4(b []byte, a netip.Addr) {
	if a.Is4() {
		copy(b, a.AsSlice())
	}
}

// parse4 reads a message. The fields sname and file have options if option 52 says so: RFC 2131
// section 4.1. With errShort the message has what is before the option.
func parse4(b []byte) (*message4, error) {
	if len(b) < headerLen4+4 || binary.BigEndian.Uint32(b[headerLen4:]) != cookie4 || b[2] > 16 {
		return nil, errNotDHCP
	}
	m := &message4{
		op: b[0], hardware: b[1], mac: append(net.HardwareAddr{}, b[28:28+int(b[2])]...),
		xid: binary.BigEndian.Uint32(b[4:]), secs: binary.BigEndian.Uint16(b[8:]), broadcast: b[10]&0x80 != 0,
		client: netip.AddrFrom4([4]byte(b[12:])), yours: netip.AddrFrom4([4]byte(b[16:])),
	}
	if err := m.options.parse(b[headerLen4+4:]); err != nil {
		return m, err
	}
	overload, _ := m.options.number(optOverload)
	if overload&1 != 0 && overload <= 3 {
		if err := m.options.parse(b[108:236]); err != nil { // file
			return m, err
		}
	}
	if overload&2 != 0 && overload <= 3 {
		if err := m.options.parse(b[44:108]); err != nil { // sname
			return m, err
		}
	}
	return m, nil
}

// kind returns the type of the message; 0 for a BOOTP message.
func (m *message4) kind() byte {
	n, ok := m.options.number(optType)
	if !ok || n > 255 {
		return 0
	}
	return byte(n)
}
