package attach

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// ForwardingOn returns the settings that switch forwarding on by a key of the host or of one link, and
// those that restore what was there. They are set in order.
//
// With IPv6 forwarding, also of one link, the kernel deletes the default routes that links with accept_ra=1
// have learned from routers, and with that of the host they learn no others (rt6_purge_dflt_routers,
// net/ipv6/route.c; ipv6_accept_ra, include/net/ipv6.h), so the links that follow routers get accept_ra=2
// before. The key of the host sets forwarding of every link, and for IPv4 also accept_redirects
// (inet_forward_change, net/ipv4/devinet.c).
func ForwardingOn(host *rtnl.Conn, key string) (on, back []netns.Sysctl, err error) {
	links, err := host.Links()
	if err != nil {
		return nil, nil, err
	}
	v4 := strings.HasPrefix(key, "net/ipv4/")
	all := key == forwardingKeys[0].key || key == forwardingKeys[1].key
	back = append(back, netns.Sysctl{Key: key, Value: "0"})
	conf := "net/ipv6/conf/"
	if v4 {
		conf = "net/ipv4/conf/"
	}
	kept := []string{conf + "default/forwarding"}
	if v4 {
		kept = append(kept, conf+"all/accept_redirects")
	}
	if !all { // the setting of a link changes no others
		kept = nil
	}
	for _, k := range kept {
		if value, err := netns.Host().Sysctl(k); err == nil {
			back = append(back, netns.Sysctl{Key: k, Value: value, Optional: true})
		}
	}
	for _, l := range links {
		if off := l.Off6 && !v4 || l.Off4 && v4; all && !off {
			back = append(back, netns.Sysctl{Key: conf + l.Name + "/forwarding", Value: "1", Optional: true})
		}
	}
	if !v4 {
		routed, err := LearnedDefaults(host)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range links {
			if l.AcceptRA == 1 && l.Off6 && followsRouters(&l, links, routed) {
				on = append(on, netns.Sysctl{Key: conf + l.Name + "/accept_ra", Value: "2", Optional: true})
				back = append(back, netns.Sysctl{Key: conf + l.Name + "/accept_ra", Value: "1", Optional: true})
			}
		}
	}
	return append(on, netns.Sysctl{Key: key, Value: "1"}), back, nil
}

// LearnedDefaults returns the links with a default route from a router advertisement.
func LearnedDefaults(host *rtnl.Conn) ([]uint32, error) {
	routes, err := host.Routes(rtnl.RouteFilter{Dst: netip.PrefixFrom(netip.IPv6Unspecified(), 0)})
	var links []uint32
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_RA {
			links = append(links, r.Link)
		}
	}
	return links, err
}

// followsRouters reports whether a link of the host has a default route from a router advertisement,
// or may get one. Without such a route it must not be one by which only containers or guests send:
// a link of an attachment, a tap, or a bridge that has no other ports (CVE-2020-10749).
func followsRouters(l *rtnl.Link, links []rtnl.Link, routed []uint32) bool {
	inside := func(l *rtnl.Link) bool { return l.Kind == "veth" || l.Kind == "tun" }
	switch {
	case spec.LabelKey(l.Alias) != "":
		return false
	case slices.Contains(routed, l.Index):
		return true
	case l.Kind == "bridge":
		return slices.ContainsFunc(links, func(port rtnl.Link) bool { return port.Master == l.Index && !inside(&port) })
	}
	return l.Master == 0 && l.Kind != "tun" && l.Flags&unix.IFF_LOOPBACK == 0
}

// IgnoringRouters returns the links of the host that follow router advertisements and ignore them since they
// forward IPv6 with accept_ra=1; none where the host has a default route of IPv6.
func IgnoringRouters(host *rtnl.Conn) (names []string, err error) {
	all := rtnl.RouteFilter{Dst: netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	if routes, err := host.Routes(all); err != nil || slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Link != 0 && r.Type == unix.RTN_UNICAST }) {
		return nil, err
	}
	links, err := host.Links()
	for _, l := range links {
		if l.AcceptRA == 1 && !l.Off6 && l.Flags&unix.IFF_RUNNING != 0 && followsRouters(&l, links, nil) {
			names = append(names, l.Name)
		}
	}
	return names, err
}
