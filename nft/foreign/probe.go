package foreign

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Outside returns an address behind the default route that no host has: RFC 5737 or RFC 3849.
func Outside(four bool) netip.Addr {
	if four {
		return netip.AddrFrom4([4]byte{203, 0, 113, 77})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 77})
}

// A Tag marks packets of a probe where no translation of addresses changes it: in TCP in the sequence number, window and
// urgent pointer, else in the data.
//
// A Tracer of a tag drops these packets behind all other chains, before they are delivered to this host or leave it; only
// ICMP leaves it, for a container. It also drops what goes to [Outside]. So no probe and no answer to one leaves the host,
// and connection tracking keeps none of TCP and UDP.
type Tag [6]byte

// Byte offsets of the tag and of the number of a probe in headers, and the length of the headers.
const (
	tcpSeqAt, tcpWindowAt, tcpUrgentAt, tcpLen = 4, 14, 18, 20
	dataAt, dataLen                            = 8, 8 // of UDP and ICMP; the number follows the tag
)

// Header returns the transport header of a probe and its data, with a zero checksum, and the offset of the checksum.
// From and to are ports, or of ICMP unused.
func (t *Tag) Header(proto uint8, number, from, to uint16) (b []byte, checksumAt int) {
	be := binary.BigEndian
	b = make([]byte, dataAt+dataLen)
	switch proto {
	case unix.IPPROTO_TCP:
		b = make([]byte, tcpLen)
		copy(b[tcpSeqAt:], t[:2])
		be.PutUint16(b[tcpSeqAt+2:], number)
		b[12], b[tcpFlagsAt] = tcpLen/4<<4, tcpSYN
		copy(b[tcpWindowAt:], t[2:4])
		copy(b[tcpUrgentAt:], t[4:])
		checksumAt = 16
	case unix.IPPROTO_UDP:
		be.PutUint16(b[4:], uint16(len(b)))
		checksumAt = 6
	default:
		from, to = map[uint8]uint16{unix.IPPROTO_ICMP: 8 << 8, unix.IPPROTO_ICMPV6: 128 << 8}[proto], 0 // echo request
		be.PutUint16(b[4:], number)
		checksumAt = 2
	}
	be.PutUint16(b, from)
	if proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_UDP {
		be.PutUint16(b[2:], to)
	}
	if proto != unix.IPPROTO_TCP {
		copy(b[dataAt:], t[:])
		be.PutUint16(b[dataAt+len(t):], number)
	}
	return b, checksumAt
}

// number returns the number of a probe with a transport header; 0: it is none.
func (t *Tag) number(proto uint8, b []byte) uint16 {
	switch {
	case t == nil || len(b) < dataAt+dataLen || proto == unix.IPPROTO_TCP && len(b) < tcpLen:
	case proto != unix.IPPROTO_TCP && bytes.Equal(b[dataAt:dataAt+len(t)], t[:]):
		return binary.BigEndian.Uint16(b[dataAt+len(t):])
	case proto == unix.IPPROTO_TCP && bytes.Equal(b[tcpSeqAt:tcpSeqAt+2], t[:2]) && bytes.Equal(b[tcpWindowAt:tcpWindowAt+2], t[2:4]):
		return binary.BigEndian.Uint16(b[tcpSeqAt+2:])
	}
	return 0
}

// match matches the probes of a protocol.
func (t *Tag) match(proto byte) rule {
	r := rule{}.meta(expr.MetaKeyL4PROTO).equal(proto)
	if proto != unix.IPPROTO_TCP {
		return r.payload(expr.PayloadBaseTransportHeader, dataAt, uint32(len(t))).equal(t[:]...)
	}
	for i, at := range []uint32{tcpSeqAt, tcpWindowAt, tcpUrgentAt} {
		r = r.payload(expr.PayloadBaseTransportHeader, at, 2).equal(t[2*i : 2*i+2]...)
	}
	return r
}

// starts are the rules that trace probes.
func (t *Tag) starts() (rules []rule) {
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		rules = append(rules, t.match(proto).trace())
	}
	return rules
}

// ends are the rules that drop probes at the end of a hook.
func (t *Tag) ends(family byte, hook int) (rules []rule) {
	if t == nil || family != inet || hook != unix.NF_INET_LOCAL_IN && hook != unix.NF_INET_POST_ROUTING {
		return nil
	}
	rules = append(rules, t.match(unix.IPPROTO_TCP).drop(), t.match(unix.IPPROTO_UDP).drop())
	if hook == unix.NF_INET_LOCAL_IN {
		return append(rules, t.match(unix.IPPROTO_ICMP).drop(), t.match(unix.IPPROTO_ICMPV6).drop())
	}
	for _, four := range []bool{true, false} {
		a := Outside(four)
		f := familyOf(a)
		rules = append(rules, rule{}.meta(expr.MetaKeyNFPROTO).equal(f).addr(f, true).equal(a.AsSlice()...).drop())
	}
	return rules
}

func (r rule) drop() rule { return append(r, &expr.Verdict{Kind: expr.VerdictDrop}) }
