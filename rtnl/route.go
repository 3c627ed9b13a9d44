package rtnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// A Route tells where packets to a network go. Zero fields are the kernel's
// choice, but for those that say otherwise.
type Route struct {
	Dst      netip.Prefix // 0.0.0.0/0 or ::/0 is the default route
	GW       netip.Addr   // zero: Dst is on the link itself
	Src      netip.Addr   // preferred source address
	Link     uint32       // index
	MTU      int          // bytes
	AdvMSS   int          // bytes
	Priority int          // the metric, smaller ones win; 0 is 1024 for IPv6
	Table    int          // 0: main (254)
	Scope    *uint8       // nil: link without GW, else universe; IPv6 has none
	OnLink   bool         // GW is on the link even if no route says so
	Protocol uint8        // who made it; 0: boot
	Type     uint8        // RTN_*; 0: unicast
}

// NewRoute adds a route, os.ErrExist if there is one to the same network with
// the same metric. It is unix.ENETDOWN while the link is down, and
// unix.ENETUNREACH (EHOSTUNREACH for IPv6) if no other route leads to GW.
func NewRoute(r Route) Op { return r.op("add", unix.RTM_NEWROUTE, create) }

// ReplaceRoute adds a route in place of one to the same network with the same
// metric, if there is one.
func ReplaceRoute(r Route) Op {
	return r.op("replace", unix.RTM_NEWROUTE, replace)
}

// AppendRoute adds a route behind those to the same network with the same metric,
// which may lead out of other links; os.ErrExist if it is there itself.
func AppendRoute(r Route) Op {
	return r.op("append", unix.RTM_NEWROUTE, ack|unix.NLM_F_CREATE|unix.NLM_F_APPEND)
}

// DropRoute deletes a route, os.ErrNotExist if there is none like it. Zero
// fields match any.
func DropRoute(r Route) Op { return r.op("delete", unix.RTM_DELROUTE, ack) }

// AddRoute adds a route; see [NewRoute].
func (c *Conn) AddRoute(r Route) error { return c.Do(NewRoute(r)) }

// String returns the route as ip(8) writes it, the link only where no gateway tells more.
func (r Route) String() string {
	var b strings.Builder
	b.WriteString(r.Dst.String())
	if r.Dst.IsValid() && r.Dst.Bits() == 0 {
		b.Reset()
		b.WriteString("default")
	}
	if r.GW.IsValid() {
		b.WriteString(" via " + r.GW.String())
	} else if r.Link != 0 {
		fmt.Fprintf(&b, " dev #%d", r.Link)
	}
	if r.Table != 0 {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}

func (r Route) op(verb string, typ, flags uint16) Op {
	data, err := r.encode(typ == unix.RTM_DELROUTE)
	return newOp("route "+verb+" "+r.String(), typ, flags, data, err)
}

// encode returns the route with the defaults of a new one, or, as a pattern,
// with what was said alone.
func (r Route) encode(pattern bool) ([]byte, error) {
	dst := r.Dst.Masked()
	if !dst.IsValid() || dst.Addr().Is4In6() {
		return nil, fmt.Errorf("destination %s: %w", r.Dst, unix.EINVAL)
	}
	for _, a := range []netip.Addr{r.GW, r.Src} {
		if a.IsValid() && (a.Is4() != dst.Addr().Is4() || a.Is4In6()) {
			return nil, fmt.Errorf("%s and %s are of different families: %w", a, dst, unix.EINVAL)
		}
	}
	if err := fit32(r.MTU, r.AdvMSS, r.Priority, r.Table); err != nil {
		return nil, err
	}
	h := routeHeader{
		family: family(dst.Addr()), dstBits: uint8(dst.Bits()),
		table: tableByte(r.Table), protocol: r.Protocol, scope: r.scope(pattern), typ: r.Type,
	}
	if !pattern {
		h.protocol = cmp.Or(r.Protocol, unix.RTPROT_BOOT)
		h.typ = cmp.Or(r.Type, unix.RTN_UNICAST)
	}
	if r.OnLink {
		h.flags = unix.RTNH_F_ONLINK
	}
	return encode(h.encode(), func(b *netlink.Buf) {
		b.Bytes(unix.RTA_DST, dst.Addr().AsSlice())
		r.attributes(b)
	}), nil
}

// attributes writes what a new route and a pattern say alike: RTA_* of
// include/uapi/linux/rtnetlink.h, and within RTA_METRICS the RTAX_*.
func (r Route) attributes(b *netlink.Buf) {
	tableAttribute(b, unix.RTA_TABLE, r.Table)
	if r.GW.IsValid() {
		b.Bytes(unix.RTA_GATEWAY, r.GW.AsSlice())
	}
	if r.Src.IsValid() {
		b.Bytes(unix.RTA_PREFSRC, r.Src.AsSlice())
	}
	if r.Link != 0 {
		b.U32(unix.RTA_OIF, r.Link)
	}
	if r.Priority != 0 {
		b.U32(unix.RTA_PRIORITY, uint32(r.Priority))
	}
	if r.MTU == 0 && r.AdvMSS == 0 {
		return
	}
	b.Nest(unix.RTA_METRICS, func() {
		if r.AdvMSS != 0 {
			b.U32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
		}
		if r.MTU != 0 {
			b.U32(unix.RTAX_MTU, uint32(r.MTU))
		}
	})
}

// A routeHeader is what routes and rules begin with: struct rtmsg, and struct
// fib_rule_hdr, whose action is where a route has its type.
type routeHeader struct {
	family, dstBits, srcBits    uint8
	table, protocol, scope, typ uint8
	flags                       uint32
}

func (h routeHeader) encode() []byte {
	b := []byte{h.family, h.dstBits, h.srcBits, 0, h.table, h.protocol, h.scope, h.typ}
	return binary.NativeEndian.AppendUint32(b, h.flags)
}

// tableByte is a table in a header; what does not fit is left to
// [tableAttribute]. 0 is main.
func tableByte(table int) uint8 {
	switch {
	case table == 0:
		return unix.RT_TABLE_MAIN
	case table > 255:
		return unix.RT_TABLE_UNSPEC
	}
	return uint8(table)
}

// tableAttribute writes a table that the header's byte cannot hold.
func tableAttribute(b *netlink.Buf, typ uint16, table int) {
	if table > 255 {
		b.U32(typ, uint32(table))
	}
}

// scope returns RT_SCOPE_*: how far the destination is. The kernel wants a gateway
// to be nearer than what is behind it, so what is on the link itself has to say
// so. A pattern of scope "nowhere" matches every route.
func (r Route) scope(pattern bool) uint8 {
	switch {
	case r.Scope != nil:
		return *r.Scope
	case pattern:
		return unix.RT_SCOPE_NOWHERE
	case !r.GW.IsValid() && r.Dst.Addr().Is4():
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

// AllTables stands for every table in a [RouteFilter].
const AllTables = -1

// A RouteFilter selects routes; zero fields select all, but Table.
type RouteFilter struct {
	Link   uint32
	Table  int // 0: main
	Family int // unix.AF_INET, unix.AF_INET6
	Dst    netip.Prefix
}

// Routes returns the routes of one table, or of all. A route with several next hops comes
// once for each. It is no error if there is no such table.
func (c *Conn) Routes(f RouteFilter) ([]Route, error) {
	if f.Dst.IsValid() {
		f.Dst = f.Dst.Masked()
		f.Family = int(family(f.Dst.Addr()))
	}
	f.Table = cmp.Or(f.Table, unix.RT_TABLE_MAIN)
	h := routeHeader{family: uint8(f.Family)}
	if f.Table != AllTables {
		h.table = tableByte(f.Table)
	}
	data := encode(h.encode(), func(b *netlink.Buf) {
		tableAttribute(b, unix.RTA_TABLE, f.Table)
		if f.Link != 0 {
			b.U32(unix.RTA_OIF, f.Link)
		}
	})
	var routes []Route
	err := c.dump(netlink.Request{Type: unix.RTM_GETROUTE, Data: data}, func(m netlink.Message) error {
		hops, err := decodeRoute(m.Data)
		for _, r := range hops {
			if m.Type == unix.RTM_NEWROUTE && f.matches(r) {
				routes = append(routes, r)
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("routes: %w", err)
	}
	return routes, nil
}

// matches applies the filter again, since a kernel before 4.20 does not.
func (f RouteFilter) matches(r Route) bool {
	return (f.Table == AllTables || r.Table == f.Table) && (f.Family == 0 || f.Family == int(family(r.Dst.Addr()))) &&
		(f.Link == 0 || f.Link == r.Link) && (!f.Dst.IsValid() || f.Dst == r.Dst)
}

// RouteTo returns the route that a packet to a would take; Dst is the address.
// The error answers errors.Is for unix.ENETUNREACH if there is none.
func (c *Conn) RouteTo(a netip.Addr) (Route, error) {
	if !a.IsValid() || a.Is4In6() {
		return Route{}, fmt.Errorf("route to %s: %w", a, unix.EINVAL)
	}
	h := routeHeader{family: family(a), dstBits: uint8(a.BitLen())}
	if a.Is4() { // IPv6 tells the table unasked, and refuses to be asked
		h.flags = unix.RTM_F_LOOKUP_TABLE
	}
	data := encode(h.encode(), func(b *netlink.Buf) { b.Bytes(unix.RTA_DST, a.AsSlice()) })
	var r Route
	err := c.get(netlink.Request{Type: unix.RTM_GETROUTE, Data: data}, func(m netlink.Message) error {
		hops, err := decodeRoute(m.Data)
		if len(hops) > 0 {
			r = hops[0]
		}
		return err
	})
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", a, err)
	}
	return r, nil
}

// decodeRoute reads an RTM_NEWROUTE message; a route with several next hops
// comes once for each.
func decodeRoute(b []byte) ([]Route, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, errMalformed
	}
	dst := netip.IPv4Unspecified() // which the default route leaves out
	if b[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	scope := b[6]
	r := Route{
		Dst:      netip.PrefixFrom(dst, int(b[1])),
		Table:    int(b[4]),
		Scope:    &scope,
		OnLink:   binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK != 0,
		Protocol: b[5],
		Type:     b[7],
	}
	var hops []Route
	for a := netlink.Attrs(b[unix.SizeofRtMsg:]); a.Next(); {
		typ, v := a.Type, a.Value
		if typ == unix.RTA_MULTIPATH {
			hops = decodeHops(v)
		}
		r.decodeAttribute(typ, v)
	}
	if len(hops) == 0 {
		return []Route{r}, nil
	}
	for i, hop := range hops {
		hops[i] = r
		hops[i].Link, hops[i].GW = hop.Link, hop.GW
	}
	return hops, nil
}

// decodeAttribute reads one RTA_* attribute. RTA_DST has no length, which is in
// the header; RTA_TABLE overrules the header, which holds tables up to 255 only.
func (r *Route) decodeAttribute(typ uint16, v []byte) {
	switch typ {
	case unix.RTA_DST:
		r.Dst = prefix(v, uint8(r.Dst.Bits()))
	case unix.RTA_GATEWAY:
		r.GW, _ = netip.AddrFromSlice(v)
	case unix.RTA_PREFSRC:
		r.Src, _ = netip.AddrFromSlice(v)
	case unix.RTA_OIF:
		r.Link = netlink.Number(v)
	case unix.RTA_PRIORITY:
		r.Priority = int(netlink.Number(v))
	case unix.RTA_TABLE:
		r.Table = int(netlink.Number(v))
	case unix.RTA_METRICS:
		r.MTU = int(netlink.Number(netlink.Attr(v, unix.RTAX_MTU)))
		r.AdvMSS = int(netlink.Number(netlink.Attr(v, unix.RTAX_ADVMSS)))
	}
}

// decodeHops reads RTA_MULTIPATH, a list of struct rtnexthop with attributes
// behind each, as routes that have link and gateway alone.
func decodeHops(b []byte) (hops []Route) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		hop := Route{Link: binary.NativeEndian.Uint32(b[4:])}
		hop.GW, _ = netip.AddrFromSlice(netlink.Attr(b[unix.SizeofRtNexthop:size], unix.RTA_GATEWAY))
		hops = append(hops, hop)
		b = b[min(len(b), (size+3)&^3):]
	}
	return hops
}

// BadGateway tells the errors of making a route whose gateway cannot be reached, is of
// this host itself, or is none.
func BadGateway(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)
}
