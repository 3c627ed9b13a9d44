package kerneltest

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/rtnl"
)

// Links lists the links of a namespace.
func Links(t testing.TB, ns *netns.NS) []rtnl.Link {
	t.Helper()
	all, err := Dial(t, ns).Links()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Link returns the first link whose name begins with prefix.
func Link(t testing.TB, c *rtnl.Conn, prefix string) *rtnl.Link {
	t.Helper()
	all, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if strings.HasPrefix(l.Name, prefix) {
			return &l
		}
	}
	t.Fatalf("no link %s", prefix)
	return nil
}

// Addr returns the first address of a link that begins with prefix.
func Addr(t testing.TB, c *rtnl.Conn, index uint32, prefix string) rtnl.Addr {
	t.Helper()
	all, err := c.Addrs(index)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if strings.HasPrefix(a.Prefix.String(), prefix) {
			return a
		}
	}
	t.Fatalf("no address %s", prefix)
	return rtnl.Addr{}
}

// Route returns the first route to a destination.
func Route(t testing.TB, c *rtnl.Conn, dst string) rtnl.Route {
	t.Helper()
	all, err := c.Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix(dst)})
	if err != nil || len(all) == 0 {
		t.Fatalf("no route to %s: %v", dst, err)
	}
	return all[0]
}

// AddLink creates a link in a namespace.
func AddLink(t testing.TB, ns *netns.NS, l rtnl.LinkSpec) (made *rtnl.Link) {
	t.Helper()
	Brief(t, ns, func(c *rtnl.Conn) (err error) { made, err = c.CreateLink(l); return err })
	return made
}

// Address sets a link up with addresses, which are usable at once, and returns its index.
func Address(t testing.TB, ns *netns.NS, link string, prefixes ...string) (index uint32) {
	t.Helper()
	Brief(t, ns, func(c *rtnl.Conn) error {
		l, err := c.Link(link)
		if err != nil {
			return err
		}
		index = l.Index
		ops := []rtnl.Op{rtnl.ChangeLink(index, rtnl.LinkChange{Up: new(true)})}
		for _, p := range prefixes {
			ops = append(ops, rtnl.NewAddr(index, rtnl.Addr{Prefix: netip.MustParsePrefix(p), NoDAD: true}))
		}
		return c.Do(ops...)
	})
	return index
}

// DefaultRoutes adds a default route via each gateway.
func DefaultRoutes(t testing.TB, ns *netns.NS, link uint32, gws ...string) {
	t.Helper()
	Brief(t, ns, func(c *rtnl.Conn) error {
		var ops []rtnl.Op
		for _, gw := range gws {
			gw := netip.MustParseAddr(gw)
			ops = append(ops, rtnl.NewRoute(rtnl.Route{Dst: DefaultDst(gw), GW: gw, Link: link}))
		}
		return c.Do(ops...)
	})
}

// DefaultDst returns the destination of a default route for the family of an address.
func DefaultDst(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// AddAltName gives a link an alternative name: ip link property add dev LINK altname NAME.
func AddAltName(t testing.TB, ns *netns.NS, link, name string) {
	t.Helper()
	index := Link(t, Dial(t, ns), link).Index
	ae := netlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_PROP_LIST, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.IFLA_ALT_IFNAME, name)
		return nil
	})
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], index)
	Need(t, "alternative names (Linux 5.5)", func() error {
		return request(t, ns, unix.RTM_NEWLINKPROP, netlink.Create|netlink.Append, header, ae)
	})
}

// AddMultipath adds a default route with several gateways: struct rtmsg, and in
// RTA_MULTIPATH a struct rtnexthop with its RTA_GATEWAY for each.
func AddMultipath(t testing.TB, ns *netns.NS, link uint32, gws ...string) {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.Do(unix.RTA_MULTIPATH, func() (b []byte, err error) {
		for _, gw := range gws {
			b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtNexthop+8)
			b = binary.NativeEndian.AppendUint32(append(b, 0, 0), link)
			hop, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.RTA_GATEWAY, Data: netip.MustParseAddr(gw).AsSlice()}})
			if err != nil {
				return nil, err
			}
			b = append(b, hop...)
		}
		return b, nil
	})
	header := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	if err := request(t, ns, unix.RTM_NEWROUTE, netlink.Create, header, ae); err != nil {
		t.Fatal(err)
	}
}

// request sends a message for which rtnl has no method.
func request(t testing.TB, ns *netns.NS, typ netlink.HeaderType, flags netlink.HeaderFlags, header []byte, ae *netlink.AttributeEncoder) error {
	t.Helper()
	attrs, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	c, err := nlconn.Open(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Acknowledge | flags}, Data: append(header, attrs...),
	})
	return err
}
