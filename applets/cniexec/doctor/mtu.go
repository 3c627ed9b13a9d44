package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// tunnels are the kinds of links that add a header to each packet.
var tunnels = [...]string{"vxlan", "geneve", "wireguard", "ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "ip6gretap", "tun"}

// A way is a link by which packets of a network leave the host, or the network's bridge.
type way struct {
	*rtnl.Link
	what string
}

// ways returns the links by which packets leave a link: the preferred uplink, tunnels with a route,
// and tunnels that are ports of the link.
func (d *Doctor) ways(l *rtnl.Link, routed []uint32) (all []way) {
	if len(d.uplinks) > 0 {
		all = append(all, way{d.uplinks[0], "the way out"})
	}
	for i := range d.inv.Links.All {
		t := &d.inv.Links.All[i]
		if slices.Contains(tunnels[:], t.Kind) && t.Up && (t.Master == l.Index || slices.Contains(routed, t.Index)) {
			all = append(all, way{t, "the tunnel"})
		}
	}
	return all
}

// checkMTU looks for networks whose packets are too large for these links.
func (d *Doctor) checkMTU(context.Context) {
	if d.inv.Links == nil {
		return
	}
	routes, err := inventory.AskHost(func(c *rtnl.Conn) ([]rtnl.Route, error) { return c.Routes(rtnl.RouteFilter{}) })
	if err != nil {
		d.skip("mtu", err)
		return
	}
	var routed []uint32
	for _, r := range routes {
		routed = append(routed, r.Link)
	}
	for _, n := range d.examined {
		l := d.inv.Links.ByName[n.resources.Link]
		if l == nil || !n.resources.Routed {
			continue
		}
		ways := d.ways(l, routed)
		if len(ways) == 0 {
			continue
		}
		out := slices.MinFunc(ways, func(a, b way) int { return cmp.Compare(a.MTU, b.MTU) })
		if l.MTU > out.MTU {
			repair := fmt.Sprintf("ip link set %s mtu %d\n\"mtu\": %[2]d in %s", l.Name, out.MTU, n.File)
			if ports := d.portMTU(l); ports != 0 && ports <= out.MTU {
				repair = fmt.Sprintf("ip link set %s mtu %d", l.Name, ports)
			}
			d.add(Finding{Severity: lint.Risk, Check: "mtu", Where: "network " + n.Name, Code: spec.CodeHost, Network: n.Name, Repair: repair,
				Message: fmt.Sprintf("%s has MTU %d, and %s, %s, has %d: large packets are fragmented or lost", l.Name, l.MTU, out.what, out.Name, out.MTU)})
		}
	}
}

// A mismatch is a conflict of two MTUs, and its repair.
type mismatch struct {
	severity     lint.Severity
	text, repair string
	again        bool // to be deleted and added after that
}

// checkPortMTU looks for attachments whose MTU differs from that of the next link.
func (d *Doctor) checkPortMTU(context.Context) {
	if d.inv.Links == nil {
		return
	}
	byMismatch := map[mismatch][]*inventory.Entry{}
	_, err := inventory.AskHost(func(c *rtnl.Conn) (struct{}, error) {
		for _, a := range d.live() {
			if l := d.inv.Link(a); l != nil {
				if m := d.mismatched(c, a, l); m != (mismatch{}) {
					byMismatch[m] = append(byMismatch[m], a)
				}
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		d.skip("mtu", err)
		return
	}
	for _, m := range slices.SortedFunc(maps.Keys(byMismatch), func(a, b mismatch) int { return cmp.Compare(a.text, b.text) }) {
		f := Finding{Severity: m.severity, Check: "mtu", Where: d.titles(byMismatch[m]), Message: m.text, Repair: m.repair, Code: spec.CodeHost}
		if m.again {
			for _, a := range byMismatch[m] {
				again := d.readd(a)
				f.Repair += "\n" + again
				f.repairs = append(f.repairs, m.repair+"\n"+again)
			}
		}
		d.add(f, byMismatch[m]...)
	}
}

// mismatched compares the host-side link with the next one and with its peer; the zero value: no
// conflict.
func (d *Doctor) mismatched(c *rtnl.Conn, a *inventory.Entry, l *rtnl.Link) mismatch {
	bridge := d.inv.Links.ByIndex[l.Master]
	peer := new(rtnl.Link)
	if l.Kind == "veth" {
		if p, err := c.Peer(l); err == nil {
			peer = p
		}
	}
	m := mismatch{}
	next := 0
	switch {
	case bridge != nil && l.MTU > bridge.MTU:
		m.text, next = fmt.Sprintf("MTU %d, and the next link, %s, has %d: large packets are lost", l.MTU, bridge.Name, bridge.MTU), bridge.MTU
	case bridge != nil && l.MTU < bridge.MTU:
		m.text, next = fmt.Sprintf("MTU %d, and its bridge, %s, has %d: larger packets to it are lost", l.MTU, bridge.Name, bridge.MTU), bridge.MTU
	case l.Master == 0 && len(d.uplinks) > 0 && l.MTU > d.uplinks[0].MTU && d.routed(a.NetworkName):
		m.severity, next = lint.Risk, d.uplinks[0].MTU
		m.text = fmt.Sprintf("MTU %d, and the next link, %s, has %d: large packets are fragmented or lost", l.MTU, d.uplinks[0].Name, next)
	case peer.MTU > l.MTU: // a smaller one may be configured, as with tuning
		m.text, next = fmt.Sprintf("%s has MTU %d, and its host-side link %d: large packets from it are lost", a.IfName, peer.MTU, l.MTU), l.MTU
	default:
		return m
	}
	if m.repair = d.repairMTU(a, l, bridge, peer, next); m.repair == "" {
		m.repair, m.again = fmt.Sprintf("\"mtu\": %d in the configuration of network %s, then", next, a.NetworkName), true
	}
	return m
}

// repairMTU returns the command that gives a link that has been changed since the add its former MTU; empty: none has been.
func (d *Doctor) repairMTU(a *inventory.Entry, l, bridge, peer *rtnl.Link, next int) string {
	former := addedMTU(a, l)
	if former == 0 && bridge != nil && peer.MTU == bridge.MTU {
		former = peer.MTU // a pair is made with one MTU
	}
	switch {
	case former != 0 && l.MTU != former:
		return fmt.Sprintf("ip link set %s mtu %d", l.Name, former)
	case peer.MTU > l.MTU && next == l.MTU:
		return fmt.Sprintf("nsenter --net=%s ip link set %s mtu %d", a.NetNSPath(), a.IfName, l.MTU)
	case bridge != nil && l.MTU != bridge.MTU && d.changedMTU(bridge):
		return fmt.Sprintf("ip link set %s mtu %d", bridge.Name, l.MTU)
	case bridge != nil && l.MTU > bridge.MTU:
		for _, o := range d.live() { // a port that was changed takes the bridge along
			if port := d.inv.Link(o); port != nil && port.Master == bridge.Index && port.MTU == bridge.MTU && addedMTU(o, port) > port.MTU {
				return fmt.Sprintf("ip link set %s mtu %d", port.Name, addedMTU(o, port))
			}
		}
	}
	return ""
}

// addedMTU returns the MTU that an add has given a host-side link, by its result or its configuration; 0: unknown.
func addedMTU(a *inventory.Entry, l *rtnl.Link) int {
	for _, i := range a.Parsed.Interfaces {
		if i.Name == l.Name && i.Sandbox == "" && i.MTU != 0 {
			return i.MTU
		}
	}
	return a.Conf.InterfacePlugin().MTU
}

// changedMTU reports whether the MTU of a bridge was set to one that none of its ports has: by itself it has the smallest of
// theirs.
func (d *Doctor) changedMTU(bridge *rtnl.Link) bool {
	return !slices.ContainsFunc(d.inv.Links.All, func(l rtnl.Link) bool { return l.Master == bridge.Index && l.MTU == bridge.MTU })
}

// portMTU returns the smallest MTU of a bridge's ports; 0: it has none.
func (d *Doctor) portMTU(bridge *rtnl.Link) (least int) {
	for _, l := range d.inv.Links.All {
		if l.Master == bridge.Index && (least == 0 || l.MTU < least) {
			least = l.MTU
		}
	}
	return least
}

// routed reports whether the host routes for a network.
func (d *Doctor) routed(network string) bool {
	return slices.ContainsFunc(d.examined, func(n *examined) bool { return n.Name == network && n.resources.Routed })
}
