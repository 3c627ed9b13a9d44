package inventory

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/rtnl"
)

// Forwarding are the settings of the host that plugins change.
var Forwarding = [...]string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"}

// Uplinks returns the indexes of the links with a default route, those of IPv4 first.
func Uplinks(conn *rtnl.Conn) (indexes []uint32, err error) {
	for _, dst := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		routes, err := conn.Routes(rtnl.RouteFilter{Dst: dst})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Dst == dst && r.Link != 0 && !slices.Contains(indexes, r.Link) {
				indexes = append(indexes, r.Link)
			}
		}
	}
	return indexes, nil
}

// LinkLine formats a link in one line.
func LinkLine(l *rtnl.Link, names map[uint32]string) string {
	line := l.Name
	if l.Kind != "" {
		line += " " + l.Kind
	}
	line += fmt.Sprintf(" mtu %d", l.MTU)
	if l.Master != 0 {
		line += " master " + names[l.Master]
	}
	if l.Hairpin {
		line += " hairpin"
	}
	if l.Isolated {
		line += " isolated"
	}
	if l.Up {
		return line + " up"
	}
	return line + " down"
}
