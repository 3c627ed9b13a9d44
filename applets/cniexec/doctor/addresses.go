package doctor

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// owners returns the examined attachments that are alive, by their addresses.
func (d *Doctor) owners() map[netip.Addr]*inventory.Entry {
	owners := map[netip.Addr]*inventory.Entry{}
	for _, a := range d.live() {
		for _, p := range a.Addresses() {
			owners[p.Addr()] = a
		}
	}
	return owners
}

// linkName returns the name of a link of the host.
func (d *Doctor) linkName(index uint32) string {
	if l := d.inv.Links.ByIndex[index]; l != nil {
		return l.Name
	}
	return fmt.Sprint("#", index)
}

// checkForeign looks for what answers for the address of a container in its place: the host itself, or what is behind
// another port of the bridge. The host knows that from a neighbour entry, and the bridge has the port.
func (d *Doctor) checkForeign(context.Context) {
	owners := d.owners()
	if len(owners) == 0 || d.inv.Links == nil {
		return
	}
	of, err := d.addrs()
	for _, l := range d.inv.Links.All {
		for _, addr := range of[l.Index] {
			if a := owners[addr.Prefix.Addr()]; a != nil && !addr.Prefix.Addr().IsLoopback() {
				d.add(Finding{Check: "foreign address", Where: fmt.Sprintf("address %s dev %s", addr.Prefix.Addr(), l.Name), Code: spec.CodeBusy,
					Message: fmt.Sprintf("this host has it, so nothing that it sends or forwards comes to %s", d.title(a)),
					Repair:  fmt.Sprintf("ip addr del %s dev %s", addr.Prefix, l.Name)}, a)
			}
		}
	}
	if err == nil {
		_, err = inventory.AskHost(func(c *rtnl.Conn) (struct{}, error) { return struct{}{}, d.foreignPorts(c, owners) })
	}
	if err != nil {
		d.skip("foreign addresses", err)
	}
}

// foreignPorts is checkForeign for what is behind ports.
func (d *Doctor) foreignPorts(c *rtnl.Conn, owners map[netip.Addr]*inventory.Entry) error {
	all, err := c.Neighbours()
	all = slices.DeleteFunc(all, func(n rtnl.Neighbour) bool {
		a := owners[n.Addr]
		return a == nil || n.Fixed() != "" || !n.Usable() || a.MAC() == "" || n.MAC.String() == a.MAC()
	})
	if err != nil || len(all) == 0 {
		return err
	}
	learned, err := c.FDB()
	if err != nil {
		return err
	}
	for _, n := range all {
		a := owners[n.Addr]
		i := slices.IndexFunc(learned, func(f rtnl.Neighbour) bool {
			port := d.inv.Links.ByIndex[f.Link]
			return f.MAC.String() == n.MAC.String() && port != nil && !d.leadsTo(port, a) && d.bridges(n.Link, port.Master)
		})
		if i < 0 {
			continue // a port of its container, of which CHECK reports another address, or one that is gone
		}
		port := d.linkName(learned[i].Link)
		d.add(Finding{Check: "foreign address", Where: fmt.Sprintf("address %s dev %s", n.Addr, d.linkName(n.Link)), Code: spec.CodeBusy,
			Message: fmt.Sprintf("%s, behind the port %s, answers for it, and %s has %s", n.MAC, port, d.title(a), a.MAC()),
			Repair:  fmt.Sprintf("take the address from what is behind %s, or `ip link set %s nomaster`\nip neigh del %s dev %s", port, port, n.Addr, d.linkName(n.Link))}, a)
	}
	return nil
}

// leadsTo reports whether a link leads to the container of an attachment.
func (d *Doctor) leadsTo(l *rtnl.Link, a *inventory.Entry) bool {
	return slices.ContainsFunc(d.inv.Entries, func(o *inventory.Entry) bool { return o.NetNSPath() == a.NetNSPath() && d.inv.Link(o) == l })
}

// bridges reports whether a link is a bridge, or a VLAN's link on it.
func (d *Doctor) bridges(index, bridge uint32) bool {
	l := d.inv.Links.ByIndex[index]
	return bridge != 0 && (index == bridge || l != nil && l.Parent == bridge)
}

// checkInside looks for permanent neighbour entries in containers that have another MAC address than the host's link, or
// the other container, whose address it is.
func (d *Doctor) checkInside(context.Context) {
	live := d.live()
	if len(live) == 0 || d.inv.Links == nil {
		return
	}
	of, err := d.addrs()
	if err != nil {
		d.skip("neighbours in containers", err)
		return
	}
	macs := map[netip.Addr][]*rtnl.Link{}
	for i := range d.inv.Links.All {
		l := &d.inv.Links.All[i]
		for _, addr := range of[l.Index] {
			macs[addr.Prefix.Addr()] = append(macs[addr.Prefix.Addr()], l)
		}
	}
	owners, done := d.owners(), map[string]bool{}
	for _, a := range live {
		path := a.NetNSPath()
		if done[path] || d.inv.Link(a) == nil {
			continue
		}
		done[path] = true
		if err := d.insideOf(path, live, owners, macs); err != nil {
			d.skip("neighbours in "+path, err)
			return // most likely it is the same for all
		}
	}
}

// insideOf is checkInside for the attachments of a network namespace.
func (d *Doctor) insideOf(path string, live []*inventory.Entry, owners map[netip.Addr]*inventory.Entry, holders map[netip.Addr][]*rtnl.Link) error {
	ns, err := netns.Open(path)
	if err != nil {
		return nil // it has just ended
	}
	defer ns.Close()
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := c.Neighbours()
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.State&unix.NUD_PERMANENT == 0 || n.MAC == nil || owners[n.Addr] == nil && holders[n.Addr] == nil {
			continue
		}
		l, err := c.LinkAt(n.Link)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(live, func(a *inventory.Entry) bool { return a.NetNSPath() == path && a.IfName == l.Name })
		if i < 0 {
			continue
		}
		if holder, mac := d.holder(live[i], n.Addr, owners, holders, n.MAC); mac != "" {
			d.add(Finding{Check: "neighbour", Where: d.title(live[i]), Code: spec.CodeCheck,
				Message: fmt.Sprintf("neighbour %s dev %s in it is permanent %s, and %s has %s", n.Addr, l.Name, n.MAC, holder, mac),
				Repair:  fmt.Sprintf("nsenter --net=%s ip neigh del %s dev %s", path, n.Addr, l.Name)}, live[i])
		}
	}
	return nil
}

// holder returns what has an address on the segment of an attachment, and its MAC address; empty: nothing that is known, or
// something has the given one.
func (d *Doctor) holder(a *inventory.Entry, addr netip.Addr, owners map[netip.Addr]*inventory.Entry, holders map[netip.Addr][]*rtnl.Link, given net.HardwareAddr) (name, mac string) {
	if o := owners[addr]; o != nil && o != a && o.NetworkName == a.NetworkName && o.MAC() != "" {
		name, mac = d.title(o), o.MAC()
	}
	host := d.inv.Link(a)
	for _, l := range holders[addr] {
		if host == nil || l.Index != host.Index && l.Index != host.Master && l.Name != a.Conf.Link {
			continue
		}
		if name, mac = l.Name, l.MAC.String(); mac == given.String() {
			break
		}
	}
	if mac == given.String() {
		return "", ""
	}
	return name, mac
}
