package portmap

import (
	"errors"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Linux drops packets from 127.0.0.1 that leave the host as martians, unless route_localnet of the
// link is on. This setting lets neighbours on the link reach services on 127.0.0.1 (CVE-2020-8558),
// which a rule in our table prevents. ADD sets it after adding the rule, only on links of the
// container alone. Both the setting and the rule stay.

// localnetTarget returns the container's IPv4 address if its ports can be reached through
// 127.0.0.1, else the zero Addr. Without masquerading answers would not return, and a port of
// another address of the host is not on 127.0.0.1. IPv6 has no such sysctl: ::1 never leaves the
// host.
func localnetTarget(maps iter.Seq[nft.PortMap]) netip.Addr {
	for m := range maps {
		local := !m.HostIP.IsValid() || m.HostIP.IsUnspecified() || m.HostIP.IsLoopback()
		if a := m.Target.Addr(); a.Is4() && local && m.SNAT {
			return a
		}
	}
	return netip.Addr{}
}

// localnetLink returns the link of the host that the mappings need and whose route_localnet is off;
// nil: none.
//
// It is the link of the route to the container's address, if the container is behind that link: an
// address of the LAN in prevResult must not set route_localnet on the uplink.
func localnetLink(op *chained.Op, maps iter.Seq[nft.PortMap]) (*rtnl.Link, error) {
	to := localnetTarget(maps)
	if !to.IsValid() {
		return nil, nil
	}
	host, err := op.OnHost()
	if err != nil {
		return nil, err
	}
	route, err := host.RouteTo(to)
	if err != nil {
		return nil, nil // no route to it
	}
	link, err := session.Ask(op.Call.Session, routedBy(route.Link), func() (*rtnl.Link, error) { return host.LinkAt(route.Link) })
	if err != nil {
		return nil, rtnl.SkipAbsent(err)
	}
	if link.RouteLocalnet {
		return nil, nil
	}
	own, err := leadsTo(op, host, link)
	if err != nil {
		return nil, err
	}
	if !own {
		op.Warn("the route to %s leads by %s, which is neither the host's end of %s in the container nor its bridge: published ports are not reached through 127.0.0.1", to, link.Name, op.IfName)
		return nil, nil
	}
	return link, nil
}

// routedBy is the key of a link of the host, by index.
type routedBy uint32

// leadsTo reports whether the container's interface is behind a link of the host.
func leadsTo(op *chained.Op, host *rtnl.Conn, link *rtnl.Link) (own bool, err error) {
	if err := op.OpenLink(0); err != nil || op.Link == nil {
		return false, err
	}
	port, err := host.VethPeer(op.Link, op.NS)
	if err == nil {
		own, err = isReachedBy(host, link, port)
	}
	return own, rtnl.SkipAbsent(err)
}

// isReachedBy reports whether a link leads to the container of the host-side veth port. The link is
// the port itself, its bridge, or the host's interface in a VLAN of that bridge, which is of kind
// vlan or a veth whose peer is a port of the bridge.
func isReachedBy(host *rtnl.Conn, link, port *rtnl.Link) (bool, error) {
	switch {
	case link.Index == port.Index:
		return true, nil
	case port.Master == 0:
		return false, nil
	case link.Index == port.Master:
		return true, nil
	case link.Parent == 0 || link.PeerNS:
		return false, nil
	}
	below, err := host.LinkAt(link.Parent)
	if err != nil {
		return false, err
	}
	return link.Kind == "vlan" && below.Index == port.Master || link.Kind == "veth" && below.Master == port.Master, nil
}

// localnetKey returns the setting of a link.
func localnetKey(link string) string { return "net/ipv4/conf/" + link + "/route_localnet" }

// setLocalnet sets route_localnet of a link that [localnetLink] has returned.
func setLocalnet(link *rtnl.Link, value string) error {
	err := netns.Host().SetSysctl(localnetKey(link.Name), value)
	if err == nil {
		link.RouteLocalnet = value == "1"
	}
	if errors.Is(err, unix.EROFS) {
		return spec.Errorf(spec.CodeNotReady, `%w: published ports are reached through 127.0.0.1 only with it; make /proc/sys writable, or set "snat" to false`, err)
	}
	return err
}
