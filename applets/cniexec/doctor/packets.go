package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/hostport"
	"cnibox/internal/tty"
	"cnibox/rtnl"
)

// label is an attachment as people know it: "c1 (edge)".
func label(a *inventory.Entry) string { return a.Name() + " (" + a.Attachment().Network + ")" }

// labels are those of several.
func labels(list []*inventory.Entry) (texts []string) {
	for _, a := range list {
		texts = append(texts, label(a))
	}
	return texts
}

// live are the attachments whose network namespace is there, as far as is known.
func (d *Doctor) live() (list []*inventory.Entry) {
	for _, a := range d.inv.Entries {
		if a.Alive() {
			list = append(list, a)
		}
	}
	return list
}

// checkUplink looks for a way out of this host, without which containers reach this host only.
func (d *Doctor) checkUplink(context.Context) {
	if d.inv.Links == nil || !slices.ContainsFunc(d.examined, func(n *examined) bool { return n.resources.Routed && n.alive() }) {
		return
	}
	if len(d.uplinks) == 0 {
		d.find("uplink", "ip route add default via ROUTER", nil, "no default route: containers reach this host only")
		return
	}
	if !slices.ContainsFunc(d.uplinks, func(l *rtnl.Link) bool { return l.Flags&unix.IFF_RUNNING != 0 }) {
		d.find("uplink", "ip link show "+d.uplinks[0].Name, nil, "%s, the link of the default route, has no carrier: containers reach this host only", d.uplinks[0].Name)
	}
}

// checkDuplicates looks for addresses that several attachments have. Leases keep that from happening
// within one store.
func (d *Doctor) checkDuplicates(context.Context) {
	of := map[netip.Addr][]*inventory.Entry{}
	for _, a := range d.live() {
		for _, p := range a.Addresses() {
			of[p.Addr()] = append(of[p.Addr()], a)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(of), netip.Addr.Compare) {
		owners := of[addr]
		if len(owners) < 2 {
			continue
		}
		text := addr.String() + ": " + strings.Join(labels(owners), ", ")
		d.find("duplicate address", "del all but one of them, and add them again", nil, "%s", text).
			split(owners, func(*inventory.Entry) string { return text })
	}
}

// checkNeighbours looks for entries of this host that somebody has made for the address of a container,
// with another MAC address: packets to the container are lost.
func (d *Doctor) checkNeighbours(context.Context) {
	owners := map[netip.Addr]*inventory.Entry{}
	for _, a := range d.live() {
		for _, p := range a.Addresses() {
			owners[p.Addr()] = a
		}
	}
	if len(owners) == 0 || d.inv.Links == nil {
		return
	}
	all, err := inventory.AskHost((*rtnl.Conn).Neighbours)
	if err != nil {
		d.skip("neighbours", err)
		return
	}
	for _, n := range all {
		a := owners[n.Addr]
		if a == nil || !n.Fixed() || a.MAC() == "" || n.MAC.String() == a.MAC() {
			continue
		}
		link := fmt.Sprint("#", n.Link)
		if l := d.inv.Links.ByIndex[n.Link]; l != nil {
			link = l.Name
		}
		d.find("neighbour", fmt.Sprintf("ip neigh del %s dev %s", n.Addr, link), nil,
			"%s dev %s %s, which somebody has set, and %s has %s", n.Addr, link, n.MAC, label(a), a.MAC()).Of(a.Attachment(), a.NetNSPath())
	}
}

// checkListeners looks for processes of this host that listen on a published port, and get nothing.
func (d *Doctor) checkListeners(context.Context) {
	var all []hostport.Port
	of := map[*inventory.Entry][]hostport.Port{}
	for _, a := range d.live() {
		for _, p := range a.Ports {
			ip, _ := netip.ParseAddr(p.HostIP)
			of[a] = append(of[a], hostport.Port{Proto: p.Protocol, IP: ip, Port: p.HostPort})
		}
		all = append(all, of[a]...)
	}
	if len(hostport.Listening(all)) == 0 { // the kernel is asked once, unless there is a fault
		return
	}
	for _, a := range d.live() {
		for _, socket := range hostport.Listening(of[a]) {
			d.find("port", "stop that process, or publish another port", nil, "%s listens on a port that leads to %s: it gets nothing", socket, label(a)).Of(a.Attachment(), a.NetNSPath())
		}
	}
}

// checkPortMTU looks for host-side links whose MTU is larger than that of their bridge or of the way out.
func (d *Doctor) checkPortMTU(context.Context) {
	if d.inv.Links == nil {
		return
	}
	larger := map[string][]*inventory.Entry{} // by what to do
	texts := map[string]string{}
	for _, a := range d.live() {
		l := d.inv.Link(a)
		if l == nil {
			continue
		}
		next := d.inv.Links.ByIndex[l.Master]
		if next == nil && l.Master == 0 && len(d.uplinks) > 0 && d.routed(a.Attachment().Network) {
			next = d.uplinks[0]
		}
		if next == nil || l.MTU <= next.MTU {
			continue
		}
		key := fmt.Sprintf("\"mtu\": %d in the network's configuration, del and add", next.MTU)
		larger[key] = append(larger[key], a)
		texts[key] = fmt.Sprintf("MTU %d, and the next link, %s, has %d: large packets are lost", l.MTU, next.Name, next.MTU)
	}
	for _, key := range slices.Sorted(maps.Keys(larger)) {
		d.find("mtu", key, nil, "%s: %s", tty.Several(labels(larger[key])), texts[key]).
			split(larger[key], func(a *inventory.Entry) string { return label(a) + ": " + texts[key] })
	}
}

// routed reports whether the host routes for a network.
func (d *Doctor) routed(network string) bool {
	return slices.ContainsFunc(d.examined, func(n *examined) bool { return n.Name == network && n.resources.Routed })
}
