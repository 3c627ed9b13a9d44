package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Route is an entry of a routing table. Zero fields are the kernel's choice, unless their comment
// says otherwise.
type Route struct {
	Dst      netip.Prefix // 0.0.0.0/0 or ::/0 is the default route
	GW       netip.Addr   // zero: Dst is on the link itself
	Src      netip.Addr   // preferred source address
	Link     uint32       // index
	MTU      int          // bytes
	AdvMSS   int          // bytes
	Priority int          // metric, smaller ones win; 0 is 1024 for IPv6
	Table    int          // 0: main (254)
	Scope    *uint8       // nil: link without GW, else universe; not for IPv6
	OnLink   bool         // GW is on the link even if no route says so
	Protocol uint8        // RTPROT_*, the origin of the route; 0: boot
	Type     uint8        // RTN_*; 0: unicast
}

// NewRoute adds a route; os.ErrExist if there is one to the same network with the same metric. The
// error is unix.ENETDOWN while the link is down, and unix.ENETUNREACH (EHOSTUNREACH for IPv6) if no
// other route leads to GW.
func NewRoute(r Route) Op { return r.op("add", unix.RTM_NEWROUTE, create) }

// ReplaceRoute adds a route, and replaces one to the same network with the same metric.
func ReplaceRoute(r Route) Op {
	return r.op("replace", unix.RTM_NEWROUTE, replace)
}

// AppendRoute adds a route after those to the same network with the same metric, which may use
// other links; os.ErrExist if the same route exists.
func AppendRoute(r Route) Op {
	return r.op("append", unix.RTM_NEWROUTE, ack|netlink.Create|netlink.Append)
}

// DropRoute deletes a route, os.ErrNotExist if none matches. Zero fields match any value.
func DropRoute(r Route) Op { return r.op("delete", unix.RTM_DELROUTE, ack) }

// AddRoute adds a route; see [NewRoute].
func (c *Conn) AddRoute(r Route) error { return c.Do(NewRoute(r)) }

// String formats the route as ip(8) does, with the link only if there is no gateway.
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

func (r Route) op(verb string, typ netlink.HeaderType, flags netlink.HeaderFlags) Op {
	data, err := r.encode(typ == unix.RTM_DELROUTE)
	return newOp("route "+verb+" "+r.String(), typ, flags, data, err)
}

// encode returns the message for a new route with its defaults, or for a pattern with only the set
// fields.
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
	if err := check32(r.MTU, r.AdvMSS, r.Priority, r.Table); err != nil {
		return nil, err
	}
	m := rtnetlink.RouteMessage{
		Family: family(dst.Addr()), DstLength: uint8(dst.Bits()),
		Table: tableByte(r.Table), Protocol: r.Protocol, Scope: r.scope(pattern), Type: r.Type,
		Attributes: rtnetlink.RouteAttributes{
			Dst: dst.Addr().AsSlice(), Src: ip(r.Src), Gateway: ip(r.GW),
			OutIface: r.Link, Priority: uint32(r.Priority), Table: tableAttribute(r.Table),
		},
	}
	if !pattern {
		m.Protocol = cmp.Or(r.Protocol, unix.RTPROT_BOOT)
		m.Type = cmp.Or(r.Type, unix.RTN_UNICAST)
	}
	if r.OnLink {
		m.Flags = unix.RTNH_F_ONLINK
	}
	if r.MTU != 0 || r.AdvMSS != 0 {
		m.Attributes.Metrics = &rtnetlink.RouteMetrics{MTU: uint32(r.MTU), AdvMSS: uint32(r.AdvMSS)}
	}
	return m.MarshalBinary()
}

// ip converts an address for the library; nil: none.
func ip(a netip.Addr) net.IP { return a.AsSlice() }

// tableByte returns the table for the header; [tableAttribute] has tables that do not fit. 0 is
// main.
func tableByte(table int) uint8 {
	switch {
	case table == 0:
		return unix.RT_TABLE_MAIN
	case table > 255:
		return unix.RT_TABLE_UNSPEC
	}
	return uint8(table)
}

// tableAttribute returns a table that does not fit into the header's byte; 0: it fits.
func tableAttribute(table int) uint32 {
	if table <= 255 {
		return 0
	}
	return uint32(table)
}

// scope returns RT_SCOPE_*, the distance to the destination. The kernel requires a gateway to be
// nearer than the networks behind it, so a destination on the link itself needs scope link. A
// pattern of scope "nowhere" matches every route.
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

// AllTables selects the routes of every table in a [RouteFilter].
const AllTables = -1

// A RouteFilter selects routes; zero fields select all, except for Table.
type RouteFilter struct {
	Link   uint32
	Table  int // 0: main
	Family int // unix.AF_INET, unix.AF_INET6
	Dst    netip.Prefix
}

// Routes returns the routes of one table, or of all. It returns a route with several next hops once
// for each. It is not an error if the table does not exist.
func (c *Conn) Routes(f RouteFilter) ([]Route, error) {
	if f.Dst.IsValid() {
		f.Dst = f.Dst.Masked()
		f.Family = int(family(f.Dst.Addr()))
	}
	f.Table = cmp.Or(f.Table, unix.RT_TABLE_MAIN)
	q := rtnetlink.RouteMessage{Family: uint8(f.Family), Attributes: rtnetlink.RouteAttributes{OutIface: f.Link}}
	if f.Table != AllTables {
		q.Table, q.Attributes.Table = tableByte(f.Table), tableAttribute(f.Table)
	}
	hops, err := c.routes(c.dump, q)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var routes []Route
	for _, r := range hops {
		if f.matches(r) {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// routes requests, by get or dump, the routes of q.
func (c *Conn) routes(ask func(netlink.Message) ([]netlink.Message, error), q rtnetlink.RouteMessage) ([]Route, error) {
	data, err := q.MarshalBinary()
	if err != nil {
		return nil, err
	}
	ms, err := ask(request(unix.RTM_GETROUTE, 0, data))
	if err != nil {
		return nil, err
	}
	var routes []Route
	for _, m := range ms {
		hops, err := decodeRoute(m.Data)
		if err != nil {
			return nil, err
		}
		routes = append(routes, hops...)
	}
	return routes, nil
}

// matches applies the filter again, since kernels before 4.20 ignore it.
func (f RouteFilter) matches(r Route) bool {
	return (f.Table == AllTables || r.Table == f.Table) && (f.Family == 0 || f.Family == int(family(r.Dst.Addr()))) &&
		(f.Link == 0 || f.Link == r.Link) && (!f.Dst.IsValid() || f.Dst == r.Dst)
}

// RouteTo returns the route of a packet to a; Dst is that address. The error matches
// unix.ENETUNREACH if there is none.
func (c *Conn) RouteTo(a netip.Addr) (Route, error) {
	if !a.IsValid() || a.Is4In6() {
		return Route{}, fmt.Errorf("route to %s: %w", a, unix.EINVAL)
	}
	q := rtnetlink.RouteMessage{
		Family: family(a), DstLength: uint8(a.BitLen()), Attributes: rtnetlink.RouteAttributes{Dst: a.AsSlice()},
	}
	if a.Is4() { // IPv6 reports the table without this flag, and rejects it
		q.Flags = unix.RTM_F_LOOKUP_TABLE
	}
	hops, err := c.routes(c.get, q)
	if err == nil && len(hops) == 0 {
		err = errMalformed
	}
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", a, err)
	}
	return hops[0], nil
}

// decodeRoute decodes an RTM_NEWROUTE message; it returns a route with several next hops once for
// each.
func decodeRoute(b []byte) ([]Route, error) {
	var m rtnetlink.RouteMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	attrs := m.Attributes
	dst, _ := netip.AddrFromSlice(attrs.Dst)
	if !dst.IsValid() { // the default route has no destination
		dst = netip.IPv4Unspecified()
		if m.Family == unix.AF_INET6 {
			dst = netip.IPv6Unspecified()
		}
	}
	r := Route{
		Dst:      netip.PrefixFrom(dst, int(m.DstLength)),
		GW:       addr(attrs.Gateway),
		Src:      addr(attrs.Src),
		Link:     attrs.OutIface,
		Priority: int(attrs.Priority),
		Table:    int(cmp.Or(attrs.Table, uint32(m.Table))),
		Scope:    &m.Scope,
		OnLink:   m.Flags&unix.RTNH_F_ONLINK != 0,
		Protocol: m.Protocol,
		Type:     m.Type,
	}
	if attrs.Metrics != nil {
		r.MTU, r.AdvMSS = int(attrs.Metrics.MTU), int(attrs.Metrics.AdvMSS)
	}
	if len(attrs.Multipath) == 0 {
		return []Route{r}, nil
	}
	var hops []Route
	for _, hop := range attrs.Multipath {
		r.Link, r.GW = hop.Hop.IfIndex, addr(hop.Gateway)
		hops = append(hops, r)
	}
	return hops, nil
}

// addr converts an address of the library; the zero value for none.
func addr(b net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// BadGateway reports whether an error of adding a route is about its gateway: it is unreachable, is
// an address of this host, or is invalid.
func BadGateway(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL)
}

// HasRoute reports whether the list has a route to dst without a gateway.
func HasRoute(list []Route, dst netip.Prefix) bool {
	for _, r := range list {
		if r.Dst == dst && !r.GW.IsValid() {
			return true
		}
	}
	return false
}

// kernelMetric6 is IP6_RT_PRIO_ADDRCONF, include/uapi/linux/ipv6_route.h: the metric of the
// kernel's own routes.
const kernelMetric6 = 256

// NetworkRoute returns the route that the kernel adds with an address to its network, but in
// another table.
func NetworkRoute(address netip.Prefix, link uint32, table int) Route {
	r := Route{Dst: address.Masked(), Link: link, Table: table, Protocol: unix.RTPROT_KERNEL}
	if address.Addr().Is4() {
		r.Src = address.Addr()
	} else {
		r.Priority = kernelMetric6
	}
	return r
}
