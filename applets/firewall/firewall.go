// Package firewall is the CNI plugin firewall: lets a container's packets pass, and isolates bridges.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "firewall",
	Conf:    conf{},
	Summary: "lets a container's packets pass, and isolates bridges",
	Help: `
key                     type    default    meaning
backend                 string  iptables   accepts in chain CNI-FORWARD, to which FORWARD of the
                                           tables filter of iptables-nft leads; nftables: makes
                                           nothing but table inet cnibox; firewalld: puts the
                                           addresses into a zone over D-Bus instead
iptablesAdminChainName  string  CNI-ADMIN  first chain, for rules of the administrator: in the
                                           tables filter, and admin-NAME of table inet cnibox
firewalldZone           string  trusted    zone for the addresses
ingressPolicy           string  open       same-bridge: nothing from or to other bridges that have
                                           a policy; isolated: nor from or to the same bridge,
                                           and port isolation for the container's ports
dbusSocket              string  -          socket of the system bus; default: of the variable
                                           DBUS_SYSTEM_BUS_ADDRESS, else
                                           /run/dbus/system_bus_socket
dataDir                 string  -          records with the handles of rules in CNI-FORWARD;
                                           default: /run/cnibox/firewall`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	Facts: spec.Facts{Since: spec.Version{Minor: 4}}, DataDir: dataDir, Restores: true, Confine: confine, Unchained: "missing prevResult from earlier plugin",
	New: func() chained.Driver { return new(conf) },
}

// Apply records the addresses and the policy in one transaction. With firewalld it then adds the
// addresses to the zone, so that every address in a zone has an owner.
func (c *conf) Apply(op *chained.Op) error {
	ctx := op.Context()
	p, r := c.plan, op.Request
	if err := p.readPrevResult(r.Call.Session, r.Prev, spec.CodeConfig); err != nil {
		return err
	}
	if op.Restoring() {
		return p.restore(ctx, op)
	}
	rules := r.Call.Session
	var z *zoneClient
	if p.firewalld && len(p.ips) > 0 {
		rules = rules.AtOnce() // the bus is asked after them, and closed
		var err error
		if z, err = dialZone(ctx, p); err != nil {
			return spec.Errorf(spec.CodeTryAgain, "failed to add the address %s to zone %q: %w; start firewalld, or take another backend", p.ips[0], p.zone, err)
		}
		defer z.close()
	}
	if err := p.isolate(op, op.Undo); err != nil {
		return err
	}
	table := nft.In(rules)
	recorded := readRules(op)
	return p.addElements(ctx, op, table, recorded, func(closed bool) error {
		if closed {
			r.Warn(`firewalld runs here and rejects what is not in one of its zones: backend "firewalld" puts the addresses into zone %q`, p.zone)
		}
		op.Undo("tables", table.Prune)
		op.Undo("rules of "+r.Attachment.String(), func(ctx context.Context) error {
			return table.Update(ctx, func(x *nft.Tx) error {
				recorded.setHandles(op, x)
				x.Release(r.Attachment, nft.KindFirewall, nft.KindZone)
				return nil
			})
		})
		if err := recorded.write(op); err != nil || z == nil {
			return err
		}
		return z.addAll(p.ips)
	})
}

// isolate sets port isolation on the container's ports, as the bridge plugin does for
// "portIsolation": the kernel then passes no frames between them and other isolated ports. No verb
// unsets it, since the flag does not show which plugin has set it.
func (p *plan) isolate(op *chained.Op, undo func(what string, fn func(context.Context) error)) error {
	set := func(port *rtnl.Link, on bool) error {
		host, err := op.OnHost()
		if err != nil {
			return err
		}
		return host.SetLink(port.Index, rtnl.LinkChange{Isolated: &on})
	}
	for _, port := range p.ports {
		if !p.isolated || port.Isolated {
			continue
		}
		undo("port isolation of "+port.Name, func(context.Context) error { return set(port, false) })
		if err := set(port, true); err != nil {
			return err
		}
	}
	return nil
}

// addElements is the transaction of ADD. It deletes elements that an earlier ADD of the attachment
// has added and this one does not add. added is called after it; closed: firewalld rejects what is not in a zone, and
// the addresses are in none.
func (p *plan) addElements(ctx context.Context, op *chained.Op, table *nft.Table, recorded *rules, added func(closed bool) error) error {
	r := op.Request
	kinds := []nft.Kind{nft.KindFirewall}
	if p.firewalld {
		all, err := table.Zones()
		old := addressesOf(all, func(e *nft.Element) bool {
			return e.OwnerKey() == r.Attachment.Key() && !slices.Contains(p.ips, e.Addr())
		})
		if kinds, err = leaveZones(ctx, p, old, err); err != nil {
			return err
		}
	}
	plan := func(x *nft.Tx) error {
		x.RecordOwner(r.Attachment)
		return p.update(r)(x)
	}
	closed := false
	add := func(x *nft.Tx) error {
		recorded.setHandles(op, x, p.ips...)
		closed = !p.firewalld && x.HasFirewalld()
		if err := plan(x); err != nil || !x.AlreadyOwned(r.Attachment) {
			return err
		}
		x.Release(r.Attachment, kinds...)
		return plan(x)
	}
	return table.UpdateThen(ctx, add, func(_ context.Context, err error) error {
		if err != nil {
			return err
		}
		return added(closed)
	})
}

// update returns the change that ADD makes in the rule set, and which CHECK looks for.
func (p *plan) update(r *spec.Request) func(*nft.Tx) error {
	return func(x *nft.Tx) error {
		for _, ip := range p.ips {
			switch {
			case p.firewalld:
				x.RecordZone(r.Attachment, ip)
			case p.ownTable:
				x.AllowOwnTable(r.Attachment, ip, p.admin)
			default:
				x.Allow(r.Attachment, ip, p.admin)
			}
		}
		if p.bridge != "" {
			x.SetBridgePolicy(r.Attachment, p.bridge, p.isolated && p.vlan == "")
		}
		if p.vlan != "" {
			x.SetBridgePolicy(r.Attachment, p.vlan, true)
		}
		return nil
	}
}

// Check looks for each element, rule and zone, and changes nothing.
func (c *conf) Check(op *chained.Op) error {
	ctx := op.Context()
	p, r := c.plan, op.Request
	if err := p.readPrevResult(r.Call.Session, r.Prev, spec.CodeCheck); err != nil {
		return err
	}
	recorded := readRules(op)
	p.ips = p.own(recorded)
	table := op.Rules()
	found := table.Check(func(x *nft.Tx) error {
		recorded.setHandles(op, x, p.ips...)
		return p.update(r)(x)
	})
	if err := p.orReference(table, found); err != nil {
		return spec.Errorf(spec.CodeCheck, "expected rule not found: %w", err)
	}
	for _, port := range p.ports {
		if p.isolated && !port.Isolated && found == nil { // the reference does not set port isolation
			return spec.Errorf(spec.CodeCheck, "port isolation of %s is off", port.Name)
		}
	}
	if !p.firewalld || len(p.ips) == 0 {
		return nil
	}
	z, err := dialZone(ctx, p)
	if err == nil {
		defer z.close()
		err = z.checkAll(p.ips)
	}
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "%w", err)
	}
	return nil
}

// orReference is [netfilter.OrReference] for the firewall: the reference's rules are by address.
// Zones are checked afterwards.
func (p *plan) orReference(table *nft.Table, err error) error {
	if missing := new(nft.MissingError); !errors.As(err, &missing) {
		return err
	}
	if p.firewalld && p.bridge == "" {
		return nil
	}
	theirs, asked := table.ReferenceFirewall(p.ips, p.admin, p.bridge != "")
	if asked != nil || theirs && !p.firewalld {
		return asked
	}
	return err
}

// Release names the elements by prevResult and the record, and without prevResult reads the sets. With prevResult it
// also deletes rules of the reference for the addresses, unless another attachment has these
// addresses now.
func (c *conf) Release(op *chained.Op) error {
	ctx := op.Context()
	p, r := c.releasePlan(), op.Request
	recorded := readRules(op)
	var ips []netip.Addr
	var known nft.Known
	if r.Prev != nil {
		ips = addressesIn(r.Prev)
		own := slices.AppendSeq(slices.Clone(ips), maps.Keys(recorded.Handles)) // later plugins may have taken addresses away
		if len(own) > 0 && len(r.Prev.Interfaces) > 0 {                         // the bridge is one of them
			known = nft.KnownFirewall(r.Attachment, own, hostLinksIn(r.Prev))
		}
	}
	table := op.Rules()
	zoned, err := p.zoned(r, table, ips)
	kinds, errs := leaveZones(ctx, p, zoned, err)
	op.Kept = true // the record stays until the transaction has deleted the rules
	release := func(x *nft.Tx) error {
		x.Addresses(ips...)
		recorded.setHandles(op, x)
		x.ReleaseKnown(r.Attachment, known, kinds...)
		return nil
	}
	return table.UpdateThen(ctx, release, func(_ context.Context, err error) error {
		if err = withoutNetfilter(r, errors.Join(errs, err)); err != nil {
			return err
		}
		return op.Dir.Remove(record.Name(r.Attachment))
	})
}

// zoned lists the addresses of the attachment that are in a zone, and with firewalld those of prevResult that no
// attachment has here, since the reference records nothing. DELs of many attachments read the zones once.
func (p *plan) zoned(r *spec.Request, table *nft.Table, prev []netip.Addr) ([]netip.Addr, error) {
	all, err := session.Ask(r.Call.Session, zones{}, table.Zones)
	if err != nil {
		return nil, err
	}
	ips := addressesOf(all, func(e *nft.Element) bool { return e.OwnerKey() == r.Attachment.Key() })
	if !p.firewalld || len(prev) == 0 {
		return ips, nil
	}
	free, err := table.Unowned(prev...)
	return append(ips, free...), err
}

// zones is the key of the addresses in zones.
type zones struct{}

// addressesOf returns the addresses of the selected elements.
func addressesOf(all []nft.Element, want func(*nft.Element) bool) (ips []netip.Addr) {
	for i := range all {
		if want(&all[i]) {
			ips = append(ips, all[i].Addr())
		}
	}
	return ips
}

// hostLinksIn returns the names of the host's interfaces in a result.
func hostLinksIn(res *spec.Result) (names []string) {
	for _, i := range res.Interfaces {
		if i.Sandbox == "" && spec.CheckIfName(i.Name) == nil {
			names = append(names, i.Name)
		}
	}
	return names
}

// leaveZones removes the addresses from their zone; err is the error of reading them. It returns
// the kinds of elements to delete: after an error the elements for zones stay, for the next DEL.
func leaveZones(ctx context.Context, p *plan, zoned []netip.Addr, err error) ([]nft.Kind, error) {
	if err == nil {
		err = removeFromZone(ctx, p, zoned)
	}
	if err != nil {
		return []nft.Kind{nft.KindFirewall}, err
	}
	return []nft.Kind{nft.KindFirewall, nft.KindZone}, nil
}

// withoutNetfilter turns errors of a kernel without netfilter into a warning: there is nothing to
// release.
func withoutNetfilter(r *spec.Request, err error) error {
	if netfilter.IsMissing(err) {
		r.Warn("%v: nothing to release", err)
		return nil
	}
	return err
}

// Probe reports a kernel or a firewalld to which no address can be added, and a directory that
// cannot store the records.
func (c *conf) Probe(op *chained.Op) error {
	ctx := op.Context()
	if !c.plan.firewalld && !c.plan.ownTable {
		if err := op.Dir.CheckWritable(); err != nil {
			return err
		}
	}
	err := op.Rules().Probe()
	if err == nil && c.plan.firewalld {
		err = probeZones(ctx, c.plan)
	}
	if err != nil {
		return spec.Errorf(spec.CodeNotReady, "firewall: %w", err)
	}
	return nil
}

// Collect deletes the elements of stale attachments. Rules of the reference do not name an owner,
// so only DEL deletes them.
func (c *conf) Collect(op *chained.Op) error {
	ctx := op.Context()
	valid := op.ValidKeys()
	table := op.Rules()
	lost, err := table.LostZones(op.Network, valid)
	zoned := addressesOf(lost, func(*nft.Element) bool { return true })
	kinds, errs := leaveZones(ctx, c.releasePlan(), zoned, err)
	err = table.Update(ctx, func(x *nft.Tx) error {
		x.DeleteStale(op.Network, valid, kinds...)
		return nil
	})
	if err = withoutNetfilter(op.Request, errors.Join(errs, err)); err != nil {
		return err
	}
	return op.Dir.DeleteStale(op.Network, op.Valid)
}

// Known looks for elements of the attachment.
func (c *conf) Known(op *chained.Op) (bool, error) {
	owned, err := op.Rules().Owned(op.Attachment, nft.KindFirewall, nft.KindZone)
	if netfilter.IsMissing(err) {
		err = nil
	}
	return len(owned) > 0, err
}

// Resources reports whether filter rules or a zone accept the packets of the addresses, and whether their ports are isolated.
func (c *conf) Resources() spec.Resources {
	return spec.Resources{Accepts: !c.plan.firewalld && !c.plan.ownTable, Zoned: c.plan.firewalld, Isolated: c.plan.isolated}
}

// Holds returns the accepted addresses, and the policy.
func (c *conf) Holds(op *chained.Op) (all []spec.Holding) {
	for _, ip := range addressesIn(op.Prev) {
		text := fmt.Sprintf("%s accepted", ip)
		if c.plan.firewalld {
			text = fmt.Sprintf("%s in zone %s of firewalld", ip, c.plan.zone)
		}
		all = append(all, spec.Holding{Kind: "accept", Text: text, Data: ip})
	}
	if c.plan.policed {
		all = append(all, spec.Holding{Kind: "policy", Text: "ingress policy " + c.IngressPolicy, Data: c.IngressPolicy})
	}
	return all
}
