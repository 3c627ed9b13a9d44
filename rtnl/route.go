package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
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
	Priority int          // the metric
	Table    int          // 0: main (254)
	Scope    *uint8       // nil: link without GW, else universe; IPv6 has none
	OnLink   bool         // GW is on the link even if no route says so
	Protocol uint8        // who made it; 0: boot
	Type     uint8        // RTN_*; 0: unicast
}

// NewRoute adds a route, os.ErrExist if there is one to the same network with
// the same metric.
func NewRoute(r Route) Op { return r.op("add", unix.RTM_NEWROUTE, create) }

// ReplaceRoute adds a route in place of one to the same network with the same
// metric, if there is one.
func ReplaceRoute(r Route) Op {
	return r.op("replace", unix.RTM_NEWROUTE, replace)
}

// DropRoute deletes a route, os.ErrNotExist if there is none like it. Zero
// fields match any.
func DropRoute(r Route) Op { return r.op("delete", unix.RTM_DELROUTE, ack) }

// AddRoute adds a route; see [NewRoute].
func (c *Conn) AddRoute(r Route) error { return c.Do(NewRoute(r)) }

// String returns the route as ip(8) writes it.
func (r Route) String() string {
	var b strings.Builder
	b.WriteString(r.Dst.String())
	if r.Dst.IsValid() && r.Dst.Bits() == 0 {
		b.Reset()
		b.WriteString("default")
	}
	if r.GW.IsValid() {
		b.WriteString(" via " + r.GW.String())
	}
	if r.Link != 0 {
		fmt.Fprintf(&b, " dev #%d", r.Link)
	}
	if r.Table != 0 {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	return b.String()
}

func (r Route) op(verb string, typ, flags uint16) Op {
	text := "route " + verb + " " + r.String()
	m, err := r.message(typ == unix.RTM_DELROUTE)
	if err != nil {
		return Op{text: text, err: err}
	}
	data, err := m.MarshalBinary()
	return newOp(text, typ, flags, data, err)
}

// message returns the route with the defaults of a new one, or, as a pattern,
// with what was said alone.
func (r Route) message(pattern bool) (*rtnetlink.RouteMessage, error) {
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
	m := &rtnetlink.RouteMessage{
		Family:    family(dst.Addr()),
		DstLength: uint8(dst.Bits()),
		Protocol:  r.Protocol,
		Type:      r.Type,
		Scope:     r.scope(pattern),
	}
	if !pattern {
		m.Protocol = cmp.Or(r.Protocol, unix.RTPROT_BOOT)
		m.Type = cmp.Or(r.Type, unix.RTN_UNICAST)
	}
	m.Table, m.Attributes.Table = tableFields(r.Table)
	if r.OnLink {
		m.Flags = unix.RTNH_F_ONLINK
	}
	at := &m.Attributes
	at.Dst = dst.Addr().AsSlice()
	at.Gateway = r.GW.AsSlice()
	at.Src = r.Src.AsSlice()
	at.OutIface = r.Link
	at.Priority = uint32(r.Priority)
	if r.MTU != 0 || r.AdvMSS != 0 {
		at.Metrics = &rtnetlink.RouteMetrics{MTU: uint32(r.MTU), AdvMSS: uint32(r.AdvMSS)}
	}
	return m, nil
}

// scope returns RT_SCOPE_*. A pattern of scope "nowhere" matches every route.
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

// tableFields splits a table into the byte of the header and the attribute that
// holds what the byte cannot; 0 is main.
func tableFields(table int) (header uint8, attribute uint32) {
	switch {
	case table == 0:
		return unix.RT_TABLE_MAIN, 0
	case table < 256:
		return uint8(table), 0
	}
	return unix.RT_TABLE_UNSPEC, uint32(table)
}

// A RouteFilter selects routes; zero fields select all, but Table.
type RouteFilter struct {
	Link   uint32
	Table  int // 0: main
	Family int // unix.AF_INET, unix.AF_INET6
	Dst    netip.Prefix
}

// Routes returns the routes of one table. A route with several next hops comes
// once for each. It is no error if there is no such table.
func (c *Conn) Routes(f RouteFilter) ([]Route, error) {
	if f.Dst.IsValid() {
		f.Dst = f.Dst.Masked()
		f.Family = int(family(f.Dst.Addr()))
	}
	f.Table = cmp.Or(f.Table, unix.RT_TABLE_MAIN)
	m := rtnetlink.RouteMessage{Family: uint8(f.Family)}
	m.Table, m.Attributes.Table = tableFields(f.Table)
	m.Attributes.OutIface = f.Link
	data, err := m.MarshalBinary()
	if err != nil {
		return nil, err
	}
	found, err := dump(c, request{typ: unix.RTM_GETROUTE, data: data}, func(m message) ([]Route, bool, error) {
		hops, err := decodeRoute(m.data)
		return hops, m.typ == unix.RTM_NEWROUTE, err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("routes: %w", err)
	}
	var routes []Route
	for _, hops := range found {
		for _, r := range hops {
			if f.matches(r) {
				routes = append(routes, r)
			}
		}
	}
	return routes, nil
}

// matches applies the filter again, since a kernel before 4.20 does not.
func (f RouteFilter) matches(r Route) bool {
	return r.Table == f.Table && (f.Family == 0 || f.Family == int(family(r.Dst.Addr()))) &&
		(f.Link == 0 || f.Link == r.Link) && (!f.Dst.IsValid() || f.Dst == r.Dst)
}

// RouteTo returns the route that a packet to a would take; Dst is the address.
// The error answers errors.Is for unix.ENETUNREACH if there is none.
func (c *Conn) RouteTo(a netip.Addr) (Route, error) {
	if !a.IsValid() || a.Is4In6() {
		return Route{}, fmt.Errorf("route to %s: %w", a, unix.EINVAL)
	}
	m := rtnetlink.RouteMessage{
		Family: family(a), DstLength: uint8(a.BitLen()),
		Attributes: rtnetlink.RouteAttributes{Dst: a.AsSlice()},
	}
	if a.Is4() { // IPv6 tells the table unasked, and refuses to be asked
		m.Flags = unix.RTM_F_LOOKUP_TABLE
	}
	data, err := m.MarshalBinary()
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", a, err)
	}
	var r Route
	err = c.get(request{typ: unix.RTM_GETROUTE, data: data}, func(m message) error {
		hops, err := decodeRoute(m.data)
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

// decodeRoute reads an RTM_NEWROUTE message; clones that the kernel keeps for
// itself are left out.
func decodeRoute(b []byte) ([]Route, error) {
	var m rtnetlink.RouteMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return nil, err
	}
	at := &m.Attributes
	dst, ok := netip.AddrFromSlice(at.Dst)
	if !ok { // the default route has none
		dst = netip.IPv4Unspecified()
		if m.Family == unix.AF_INET6 {
			dst = netip.IPv6Unspecified()
		}
	}
	r := Route{
		Dst:      netip.PrefixFrom(dst, int(m.DstLength)),
		Link:     at.OutIface,
		Priority: int(at.Priority),
		Table:    int(cmp.Or(at.Table, uint32(m.Table))),
		Scope:    &m.Scope,
		OnLink:   m.Flags&unix.RTNH_F_ONLINK != 0,
		Protocol: m.Protocol,
		Type:     m.Type,
	}
	r.GW, _ = netip.AddrFromSlice(at.Gateway)
	r.Src, _ = netip.AddrFromSlice(at.Src)
	if at.Metrics != nil {
		r.MTU, r.AdvMSS = int(at.Metrics.MTU), int(at.Metrics.AdvMSS)
	}
	if len(at.Multipath) == 0 {
		return []Route{r}, nil
	}
	hops := make([]Route, len(at.Multipath))
	for i, hop := range at.Multipath {
		hops[i] = r
		hops[i].Link = hop.Hop.IfIndex
		hops[i].GW, _ = netip.AddrFromSlice(hop.Gateway)
	}
	return hops, nil
}
