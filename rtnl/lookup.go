package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Lookup has the packet fields by which the kernel selects a route.
type Lookup struct {
	Src, Dst netip.AddrPort // port 0: none
	Proto    uint8          // unix.IPPROTO_TCP or the like; used only with ports
	In       uint32         // incoming link; 0: this host sends the packet
	Mark     uint32
}

// LookupRoute returns the entry of the routing tables that a packet matches (RTM_F_FIB_MATCH, Linux
// 4.13), once for each of its next hops. The error matches the errno of the kernel: ENETUNREACH and
// EHOSTUNREACH without a route, EHOSTUNREACH also if the link does not forward IPv4; EACCES if a
// route or a rule prohibits it; EINVAL for an address that is not valid there. If the reverse path
// filter drops the packet it is EXDEV, and since Linux 6.13 EINVAL.
func (c *Conn) LookupRoute(l Lookup) ([]Route, error) {
	fail := func(err error) ([]Route, error) { return nil, fmt.Errorf("route to %s: %w", l.Dst.Addr(), err) }
	dst, src := l.Dst.Addr(), l.Src.Addr()
	m := rtnetlink.RouteMessage{
		Family: family(dst), DstLength: uint8(dst.BitLen()), SrcLength: uint8(src.BitLen()), Flags: unix.RTM_F_FIB_MATCH,
		Attributes: rtnetlink.RouteAttributes{Dst: ip(dst), Mark: l.Mark},
	}
	if dst.Is4() { // IPv6 reports the table without this flag, and rejects it
		m.Flags |= unix.RTM_F_LOOKUP_TABLE
	}
	data, err := marshal(&m, func(ae *netlink.AttributeEncoder) {
		if src.IsValid() {
			ae.Bytes(unix.RTA_SRC, src.AsSlice())
		}
		if l.In != 0 {
			ae.Uint32(unix.RTA_IIF, l.In)
		}
		if l.Dst.Port() != 0 {
			ae.Uint8(unix.RTA_IP_PROTO, l.Proto)
			ae.Bytes(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, l.Src.Port()))
			ae.Bytes(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, l.Dst.Port()))
		}
	})
	if err != nil {
		return fail(err)
	}
	ms, err := c.get(request(unix.RTM_GETROUTE, 0, data))
	if err != nil {
		return fail(err)
	}
	if len(ms) != 1 {
		return fail(errMalformed)
	}
	return decodeRoute(ms[0].Data)
}
