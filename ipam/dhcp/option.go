// Package dhcp is a DHCP client: messages and options of DHCPv4 (RFC 2131, 2132) and
// DHCPv6 (RFC 8415), the sockets they go through, and [Holder], which renews the leases
// of one network interface. It does not depend on CNI and stores nothing on disk.
//
// Begin reading at Holder. client4.go and client6.go have the exchanges of the two
// protocols, message4.go and message6.go their messages. All data of a server is checked
// here.
package dhcp

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// The options that the client knows: RFC 2132, and where that is not the source, the
// RFC in the comment. Those of DHCPv6 are in message6.go.
const (
	optPad          = 0
	optMask         = 1
	optRouter       = 3
	optDNS          = 6
	optDomain       = 15
	optMTU          = 26
	optStaticRoutes = 33
	optNTP          = 42
	optAddress      = 50 // the address asked for
	optLeaseTime    = 51
	optOverload     = 52
	optType         = 53
	optServer       = 54
	optRequest      = 55
	optMaxSize      = 57
	optT1           = 58
	optT2           = 59
	optClientID     = 61
	optSearch       = 119 // RFC 3397
	optRoutes       = 121 // RFC 3442
	optEnd          = 255
)

var errShort = errors.New("an option is cut off")

// An Option is one option of a DHCPv4 message. Data may be longer than the 255 bytes
// that one instance can have; encode splits it.
type Option struct {
	Code byte   `json:"code"`
	Data []byte `json:"data"`
}

// options are those of a message, in order and each code once.
type options []Option

// get returns the data of an option, nil if it is not there.
func (o options) get(code byte) []byte {
	for _, opt := range o {
		if opt.Code == code {
			return opt.Data
		}
	}
	return nil
}

// add adds an option, or appends to its data: a long one comes in several parts, RFC 3396. An option
// without data counts as present.
func (o *options) add(code byte, data []byte) {
	for i := range *o {
		if (*o)[i].Code == code {
			(*o)[i].Data = append((*o)[i].Data, data...)
			return
		}
	}
	*o = append(*o, Option{code, append([]byte{}, data...)})
}

// set replaces the data of the option.
func (o *options) set(code byte, data []byte) {
	for i := range *o {
		if (*o)[i].Code == code {
			(*o)[i].Data = data
			return
		}
	}
	*o = append(*o, Option{code, data})
}

// parse reads the options of an area; the rest after the end option is padding. The end option may
// be missing, as with some servers.
func (o *options) parse(area []byte) error {
	for len(area) > 0 && area[0] != optEnd {
		if area[0] == optPad {
			area = area[1:]
			continue
		}
		if len(area) < 2 || len(area) < 2+int(area[1]) {
			return errShort
		}
		end := 2 + int(area[1])
		o.add(area[0], area[2:end])
		area = area[end:]
	}
	return nil
}

// encode writes the options and the end option.
func (o options) encode(b []byte) []byte {
	for _, opt := range o {
		data := opt.Data
		for {
			n := min(len(data), 255)
			b = append(append(b, opt.Code, byte(n)), data[:n]...)
			if data = data[n:]; len(data) == 0 {
				break
			}
		}
	}
	return append(b, optEnd)
}

// number returns an option of 1 to 4 bytes; false if it is missing or longer.
func (o options) number(code byte) (uint32, bool) {
	data := o.get(code)
	if len(data) == 0 || len(data) > 4 {
		return 0, false
	}
	var b [4]byte
	copy(b[4-len(data):], data)
	return binary.BigEndian.Uint32(b[:]), true
}

// addr returns the first address of an option that a host may have; zero: none.
func (o options) addr(code byte) netip.Addr {
	if list := o.addrs(code); len(list) > 0 {
		return list[0]
	}
	return netip.Addr{}
}

// longestList limits the addresses or names that are taken from a list of a server. Routes are not
// limited; a packet has some 2000 at most.
const longestList = 64

// addrs returns the addresses of an option that a host may have.
func (o options) addrs(code byte) (list []netip.Addr) {
	for data := o.get(code); len(data) >= 4 && len(list) < longestList; data = data[4:] {
		a := netip.AddrFrom4([4]byte(data))
		if isHost(a) {
			list = append(list, a)
		}
	}
	return list
}

// isHost reports whether a host can have an address on a network, so not a loopback address.
func isHost(a netip.Addr) bool {
	if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) {
		return false
	}
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback()
}

// prefixBits returns the prefix length of a network mask; false if it is not contiguous.
func prefixBits(mask []byte) (int, bool) {
	if len(mask) != 4 {
		return 0, false
	}
	m := binary.BigEndian.Uint32(mask)
	bits := 0
	for m&(1<<31) != 0 {
		bits, m = bits+1, m<<1
	}
	return bits, m == 0 && bits > 0
}

// A Route is a route that a server sends. Without a gateway (the zero value) its
// destination is on the link.
type Route struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

// classless reads option 121: for each route the length of its mask, the bytes of the
// destination that the mask covers, and the router (0.0.0.0: on the link).
// False: it is malformed; the routes before that are valid.
func classless(data []byte) (routes []Route, ok bool) {
	for len(data) > 0 {
		bits := int(data[0])
		n := (bits + 7) / 8
		if bits > 32 || len(data) < 1+n+4 {
			return routes, false
		}
		var dst [4]byte
		copy(dst[:], data[1:1+n])
		r := Route{Dst: netip.PrefixFrom(netip.AddrFrom4(dst), bits).Masked()}
		gw := netip.AddrFrom4([4]byte(data[1+n:]))
		data = data[1+n+4:]
		switch {
		case gw.IsUnspecified():
		case !isHost(gw):
			continue
		default:
			r.GW = gw
		}
		routes = append(routes, r)
	}
	return routes, true
}

// classful reads option 33: pairs of a destination and a router. The length of the
// mask is that of the destination's class; a default route is not allowed there.
func classful(data []byte) (routes []Route) {
	for ; len(data) >= 8; data = data[8:] {
		dst, gw := netip.AddrFrom4([4]byte(data)), netip.AddrFrom4([4]byte(data[4:]))
		if !isHost(dst) || !isHost(gw) {
			continue
		}
		bits := 24
		switch first := data[0]; {
		case first < 128:
			bits = 8
		case first < 192:
			bits = 16
		}
		p := netip.PrefixFrom(dst, bits)
		if p.Masked().Addr() != dst {
			p = netip.PrefixFrom(dst, 32) // a host within the network
		}
		routes = append(routes, Route{p, gw})
	}
	return routes
}
