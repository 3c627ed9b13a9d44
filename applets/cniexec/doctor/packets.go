package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// live returns the examined attachments whose network namespace exists, as far as known.
func (d *Doctor) live() (list []*inventory.Entry) {
	for _, a := range d.list {
		if d.lives[a] {
			list = append(list, a)
		}
	}
	return list
}

// checkUplink looks for a default route of this host, without which containers reach only this
// host. That may be meant so; a default route without a carrier is not.
func (d *Doctor) checkUplink(context.Context) {
	if d.inv.Links == nil || !slices.ContainsFunc(d.examined, func(n *examined) bool { return n.resources.Routed && n.alive() }) {
		return
	}
	if len(d.uplinks) == 0 {
		if d.ignoresRA { // that is why
			return
		}
		d.add(Finding{Severity: lint.Hint, Check: "uplink", Message: "no default route: containers reach this host only", Repair: "ip route add default via ROUTER", Code: spec.CodeHost})
		return
	}
	if !slices.ContainsFunc(d.uplinks, func(l *rtnl.Link) bool { return l.Flags&unix.IFF_RUNNING != 0 }) {
		d.add(Finding{Check: "uplink", Repair: "ip link show " + d.uplinks[0].Name, Code: spec.CodeHost,
			Message: d.uplinks[0].Name + ", the link of the default route, has no carrier: containers reach this host only"})
	}
}

// checkDuplicates looks for addresses that several attachments have. Within one store leases
// prevent this.
func (d *Doctor) checkDuplicates(context.Context) {
	byAddr := map[netip.Addr][]*inventory.Entry{}
	for _, a := range d.inv.Entries {
		if !d.lives[a] {
			continue
		}
		for _, p := range a.Addresses() {
			byAddr[p.Addr()] = append(byAddr[p.Addr()], a)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(byAddr), netip.Addr.Compare) {
		owners := byAddr[addr]
		looked := func(a *inventory.Entry) bool { return slices.Contains(d.list, a) }
		if len(owners) > 1 && slices.ContainsFunc(owners, looked) {
			f := Finding{Check: "duplicate address", Where: "duplicate address " + addr.String(), Code: spec.CodeBusy,
				Message: d.titles(owners) + ": all but one of them must be deleted, and added with another one"}
			for _, a := range owners {
				f.repairs = append(f.repairs, d.readd(a))
			}
			f.Repair = strings.Join(f.repairs[1:], "\n")
			d.add(f, owners...)
		}
	}
}

// checkNeighbours looks for neighbour entries of this host for the address of a container with
// another MAC address: packets to the container are lost.
func (d *Doctor) checkNeighbours(context.Context) {
	owners := d.owners()
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
		if a == nil || n.Fixed() == "" || a.MAC() == "" || n.MAC.String() == a.MAC() {
			continue
		}
		link := d.linkName(n.Link)
		d.add(Finding{Check: "neighbour", Where: fmt.Sprintf("neighbour %s dev %s", n.Addr, link), Repair: fmt.Sprintf("ip neigh del %s dev %s", n.Addr, link), Code: spec.CodeCheck,
			Message: fmt.Sprintf("%s %s, %s has %s", n.Fixed(), n.MAC, d.title(a), a.MAC())}, a)
	}
}

// checkListeners looks for processes of this host that listen on a published port, and so receive
// nothing.
func (d *Doctor) checkListeners(context.Context) {
	var all []spec.Port
	for _, a := range d.live() {
		all = append(all, a.Ports...)
	}
	if len(hostport.Listening(all)) == 0 { // one question to the kernel, unless there is a fault
		return
	}
	for _, a := range d.live() {
		for _, l := range hostport.Listening(a.Ports) {
			if l.Program == "conmon" { // for podman it holds the published ports
				continue
			}
			d.add(Finding{Severity: lint.Risk, Check: "port", Where: l.String(), Message: fmt.Sprintf("it listens on a port that leads to %s, and gets nothing", d.title(a)),
				Repair: "stop that process, or publish another port", Code: spec.CodeBusy}, a)
		}
	}
}
