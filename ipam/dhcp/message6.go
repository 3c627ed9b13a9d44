package dhcp

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"strconv"
	"time"
)

// The types of DHCPv6 messages: RFC 8415 section 7.3.
const (
	solicit6   = 1
	advertise6 = 2
	request6   = 3
	renew6     = 5
	rebind6    = 6
	reply6     = 7
	release6   = 8
)

// The options that the client knows: RFC 8415 section 21; DNS and search are RFC 3646,
// NTP is RFC 5908.
const (
	opt6ClientID   = 1
	opt6ServerID   = 2
	opt6IANA       = 3
	opt6Address    = 5
	opt6Request    = 6
	opt6Preference = 7
	opt6Elapsed    = 8
	opt6Status     = 13
	opt6DNS        = 23
	opt6Search     = 24
	opt6NTP        = 56
	opt6MaxRT      = 82 // must be requested: section 21.24; the value is ignored, since our pauses are shorter
)

// The status codes that the client distinguishes: RFC 8415 section 21.13.
const (
	status6Success   = 0
	status6NoBinding = 3
	status6NotOnLink = 4
)

// iaid identifies the IA_NA among those of a client: RFC 8415 section 12. Each attachment has a DUID of
// its own, and one IA_NA, so the number may be any.
const iaid = 1

// An option6 is one option of DHCPv6. The data are a part of the message.
type option6 struct {
	code uint16
	data []byte
}

// options6 are those of a message, in order; a code may occur several times.
type options6 []option6

// get returns the data of the first option of a code, nil if there is none.
func (o options6) get(code uint16) []byte {
	for _, opt := range o {
		if opt.code == code {
			return opt.data
		}
	}
	return nil
}

// parseOptions6 reads options to the end of b. With errShort it returns those before.
func parseOptions6(b []byte) (list options6, err error) {
	for len(b) > 0 {
		if len(b) < 4 || len(b) < 4+int(binary.BigEndian.Uint16(b[2:])) {
			return list, errShort
		}
		end := 4 + int(binary.BigEndian.Uint16(b[2:]))
		list = append(list, option6{binary.BigEndian.Uint16(b), b[4:end]})
		b = b[end:]
	}
	return list, nil
}

// append6 appends an option to b.
func append6(b []byte, code uint16, data ...byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// A message6 is a DHCPv6 message as client and server exchange it: RFC 8415 section 8.
type message6 struct {
	kind byte
	xid  uint32 // 24 bits

	client, server []byte        // DUIDs; server is nil for all servers
	elapsed        time.Duration // since the first message of the exchange
	address        netip.Addr    // in the IA_NA; zero: none
	options        options6      // of a received message
}

// encode writes a client's message. A RELEASE requests no options.
func (m *message6) encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, m.xid&0xffffff|uint32(m.kind)<<24)
	b = append6(b, opt6ClientID, m.client...)
	if m.server != nil {
		b = append6(b, opt6ServerID, m.server...)
	}
	hundredths := min(m.elapsed/(10*time.Millisecond), math.MaxUint16)
	b = append6(b, opt6Elapsed, byte(hundredths>>8), byte(hundredths))
	ia := binary.BigEndian.AppendUint32(nil, iaid)
	ia = append(ia, 0, 0, 0, 0, 0, 0, 0, 0) // T1 and T2: the server chooses
	if m.address.IsValid() {
		ia = append6(ia, opt6Address, append(m.address.AsSlice(), 0, 0, 0, 0, 0, 0, 0, 0)...)
	}
	b = append6(b, opt6IANA, ia...)
	if m.kind == release6 {
		return b
	}
	return append6(b, opt6Request, 0, opt6DNS, 0, opt6Search, 0, opt6NTP, 0, opt6MaxRT)
}

// parse6 reads a server's message. With errShort it has what is before the option.
func parse6(b []byte) (*message6, error) {
	if len(b) < 4 {
		return nil, errNotDHCP
	}
	m := &message6{kind: b[0], xid: binary.BigEndian.Uint32(b) & 0xffffff}
	var err error
	m.options, err = parseOptions6(b[4:])
	m.client, m.server = m.options.get(opt6ClientID), m.options.get(opt6ServerID)
	return m, err
}

// preference returns the server's preference, 0 to 255: RFC 8415 section 21.8.
func (m *message6) preference() int {
	if data := m.options.get(opt6Preference); len(data) == 1 {
		return int(data[0])
	}
	return 0
}

// status returns the error in the status option; without one it is success. NoBinding and NotOnLink are
// errRefused.
func status(o options6) error {
	data := o.get(opt6Status)
	if len(data) < 2 {
		return nil
	}
	code := binary.BigEndian.Uint16(data)
	text := "status " + strconv.Itoa(int(code))
	switch code {
	case status6Success:
		return nil
	case status6NoBinding, status6NotOnLink:
		return wrap(text, errRefused)
	}
	return errors.New(text)
}

// lease6 reads what an ADVERTISE or REPLY grants: the first address of our IA_NA that
// has a lifetime.
func lease6(m *message6, start time.Duration) (*Lease, error) {
	if err := status(m.options); err != nil {
		return nil, err
	}
	for _, opt := range m.options {
		if opt.code != opt6IANA || len(opt.data) < 12 || binary.BigEndian.Uint32(opt.data) != iaid {
			continue
		}
		inner, err := parseOptions6(opt.data[12:])
		if err == nil {
			err = status(inner)
		}
		if err != nil {
			return nil, err
		}
		t1, t2 := binary.BigEndian.Uint32(opt.data[4:]), binary.BigEndian.Uint32(opt.data[8:])
		if t1 > t2 && t2 > 0 { // RFC 8415 section 21.4
			return nil, errors.New("its T1 is behind its T2")
		}
		l, err := leaseOf(inner, t1, t2)
		if err != nil {
			return nil, err
		}
		l.Server, l.Start = append([]byte(nil), m.server...), start
		l.DNS, l.NTP = addrs6(m.options.get(opt6DNS)), ntp6(m.options.get(opt6NTP))
		l.Search = domainList(m.options.get(opt6Search))
		return l, nil
	}
	return nil, errors.New("it gives no address")
}

// leaseOf takes the first address that can be used. The preferred lifetime only
// decides when to renew: RFC 8415 section 14.2.
func leaseOf(ia options6, t1, t2 uint32) (*Lease, error) {
	last := errors.New("it gives no address")
	for _, opt := range ia {
		if opt.code != opt6Address || len(opt.data) < 24 {
			continue
		}
		a := netip.AddrFrom16([16]byte(opt.data))
		preferred, life := binary.BigEndian.Uint32(opt.data[16:]), binary.BigEndian.Uint32(opt.data[20:])
		if !isHost(a) || a.Is4In6() || a.IsLinkLocalUnicast() {
			last = errors.New("it gives the address " + a.String())
			continue
		}
		if preferred > life { // RFC 8415 section 21.6
			last = errors.New("it prefers the address longer than it is valid")
			continue
		}
		if preferred != 0 && preferred < life {
			if t1 == 0 {
				t1 = preferred / 2
			}
			if t2 == 0 {
				t2 = uint32(uint64(preferred) * 4 / 5)
			}
		}
		l := &Lease{Address: netip.PrefixFrom(a, 128)}
		if last = l.times(life, t1, t2); last == nil {
			return l, nil
		}
	}
	return nil, last
}

// addrs6 reads a list of addresses; it skips those that no host can have.
func addrs6(data []byte) (list []netip.Addr) {
	for ; len(data) >= 16 && len(list) < longestList; data = data[16:] {
		if a := netip.AddrFrom16([16]byte(data)); isHost(a) && !a.Is4In6() {
			list = append(list, a)
		}
	}
	return list
}

// ntp6 reads the addresses of time servers; it skips names and multicast groups.
func ntp6(data []byte) (list []netip.Addr) {
	const unicast = 1 // NTP_SUBOPTION_SRV_ADDR, RFC 5908 section 4.1
	inner, err := parseOptions6(data)
	if err != nil {
		return nil
	}
	for _, opt := range inner {
		if opt.code == unicast {
			list = append(list, addrs6(opt.data)...)
		}
	}
	return list[:min(len(list), longestList)]
}
