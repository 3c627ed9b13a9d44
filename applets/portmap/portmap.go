// Package portmap is the CNI plugin portmap: ports of the host that lead to ports of a container.
package portmap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "portmap",
	Conf:    conf{},
	Summary: "ports of the host that lead to ports of a container",
	Help: `
key                   type    default              meaning
backend               string  nftables             iptables is accepted and means the same
snat                  bool    true                 masquerades what comes from a container's subnet
                                                   or 127.0.0.1, so that answers come back
masqAll               bool    false                with snat: masquerades what comes from anywhere
conditionsV4          list    -                    what packets must match as well: addresses,
                                                   interfaces and marks, in the syntax of
                                                   iptables ([!] -s -d -i -o --mark) or of nft
                                                   (ip|ip6 saddr|daddr, iifname, oifname,
                                                   meta|ct mark, [!=] value or { a, b });
                                                   anything else is refused
conditionsV6          list    -                    the same for IPv6
markMasqBit           int     -                    0 to 31; accepted, but the bit used here is 12
externalSetMarkChain  string  -                    accepted, but not needed here
dataDir               string  /run/cnibox/portmap  where the owners of ports are recorded

runtimeConfig.portMappings (capability portMappings), a list of objects:
hostPort              int     0                    1 to 65535; 0: the mapping is skipped
containerPort         int     -                    1 to 65535
protocol              string  tcp                  tcp, udp or sctp
hostIP                string  -                    of the host; none, 0.0.0.0 and :: are any address`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	Facts: spec.Facts{Replaces: true}, DataDir: dataDir, Restores: true,
	New: func() chained.Driver { return new(conf) },
}

// dataDir is in /run, since namespaces end with the boot.
const dataDir = state.Ports

// Apply publishes all ports in one transaction, or none. They replace the ports of an earlier ADD.
func (c *conf) Apply(op *chained.Op) error {
	ctx := op.Context()
	targets := targetsOf(op.Prev, op.IfName)
	maps := c.maps(targets)
	if noMaps(maps) && op.Restoring() {
		return nil
	}
	if !noMaps(maps) {
		if err := op.CheckIndexes(); err != nil {
			return err
		}
		op.Dir.Make()
	}
	if op.Restoring() {
		return c.republish(ctx, op, maps)
	}
	for _, l := range hostport.Listening(c.hostPorts(targets)) {
		op.Warn("%s %s: the port leads to the container", l, hostport.TakenFrom)
	}
	unlock, err := lock(op)
	if err != nil {
		return err
	}
	defer unlock() // failures are undone under the lock
	return op.Failed(c.publish(ctx, op, maps))
}

// lock takes the lock of the directory. Attachments and plugins whose changes are made together hold it until these are made.
func lock(op *chained.Op) (unlock func(), err error) {
	_, unlock, err = session.Keep(op.Call.Session, lockOf(op.Dir), func() (func(), error) { return op.Dir.Lock(op.Context()) }, func(unlock func()) { unlock() })
	return unlock, err
}

// lockOf is the key of the lock of a directory.
type lockOf record.Dir

// publish is the ADD of Apply, under the lock.
//
// The order is the owner's record, the rules, the sysctl, pending ports, old flows. A failure
// undoes the steps before it, under the same lock.
func (c *conf) publish(ctx context.Context, op *chained.Op, maps iter.Seq[nft.PortMap]) error {
	r, dir := op.Request, portOwners(op.Dir)
	old := dir.owner(r.Attachment.Key()) // of an earlier ADD without a DEL
	switch none := noMaps(maps); {
	case none && old == nil:
		return nil
	case none:
		return releasePorts(ctx, r, dir, knownOf(old), old.Data.UDP)
	}
	link, err := localnetLink(op, maps)
	if err == nil && link != nil {
		err = setLocalnet(link, "0") // unchanged, so that a read-only file system is an error before the first change
	}
	if err != nil {
		return err
	}
	asked := portsOf(c.mappings, maps)
	if err := dir.record(r, old, asked); err != nil {
		return err
	}
	return publishPorts(ctx, r, dir, maps, old, func(pending bool, err error) error {
		if err == nil || old == nil { // after an error the ports of an earlier ADD stay published
			op.Undo("ports of "+r.Attachment.String(), func(ctx context.Context) error { return releasePorts(ctx, r, dir, nil, nil) })
		}
		if err == nil && link != nil { // after the transaction, whose base ruleset protects 127.0.0.0/8
			op.Undo("route_localnet of "+link.Name, func(context.Context) error { return rtnl.SkipAbsent(setLocalnet(link, "0")) })
			err = setLocalnet(link, "1")
		}
		switch {
		case err != nil:
		case pending:
			err = dir.setPending(r.Attachment, portsAsked{*c, targetsOf(r.Prev, r.IfName)})
		default:
			err = dir.dropPending(r.Attachment)
		}
		if err != nil {
			return err
		}
		if old != nil {
			asked = asked.and(old.Data)
		}
		forgetFlows(r, asked.UDP)
		return nil
	})
}

// publishPorts publishes the ports in one transaction for IPv4 and IPv6, which also deletes the
// ports of an earlier ADD of the attachment, of which old is the record; nil: none. Ports that other attachments of the container have
// become pending. Pending ports of those are published if this attachment does not have them any
// more.
//
// A port of another container is an error of code 100 with the owner's name. If the owner's
// namespace is gone, the port is taken over. then is called after the transaction, and its error returned.
func publishPorts(ctx context.Context, r *spec.Request, dir portOwners, maps iter.Seq[nft.PortMap], old *portOwner, then func(pending bool, err error) error) error {
	pending := false
	holders := dir.holders(r.Attachment)
	var gone []string
	var next []*nextOwner
	var published []spec.Attachment
	if old != nil {
		var err error
		if next, err = dir.nextOwners(r, r.ContainerID, func(a spec.Attachment) bool { return a == r.Attachment }); err != nil {
			return err
		}
	}
	publish := func(x *nft.Tx) error {
		pending = false
		if old != nil {
			x.ReleaseKnown(r.Attachment, knownOf(old), nft.KindPortMap)
		}
		for m := range maps {
			err := x.PortMap(r.Attachment, m)
			var taken *nft.TakenError
			if err != nil && errors.As(err, &taken) && taken.OwnerKey() != r.Attachment.Key() {
				switch holder := holders(taken.OwnerKey()); {
				case holder.gone:
					if !slices.Contains(gone, taken.OwnerKey()) {
						gone = append(gone, taken.OwnerKey())
						r.Warn("%v, whose network namespace is gone: taken over", taken)
					}
					m.Replace = true
					err = x.PortMap(r.Attachment, m)
				case holder.sibling:
					pending = true
					continue
				}
			}
			if err != nil && errors.As(err, &taken) {
				err = spec.Errorf(spec.CodeBusy, "%w: publish another host port, or stop that container first", err)
			}
			if err != nil {
				return err
			}
		}
		published = publishNext(r, x, next)
		return nil
	}
	return nft.In(r.Call.Session).UpdateThen(ctx, publish, func(_ context.Context, err error) error {
		if err == nil {
			err = dir.dropPending(published...)
		}
		return then(pending, err)
	})
}

// releasePorts deletes the ports of the attachment, including those that the reference published,
// and publishes pending ports of the container's other attachments in the same transaction. All may
// be missing. known names the attachment's elements; nil: they are not known. udp are the ports whose conntrack entries are deleted.
func releasePorts(ctx context.Context, r *spec.Request, dir portOwners, known nft.Known, udp []udpPort) error {
	next, unread := dir.nextOwners(r, r.ContainerID, func(a spec.Attachment) bool { return a == r.Attachment })
	var published []spec.Attachment
	release := func(x *nft.Tx) error {
		x.Addresses(addressesOf(r)...)
		x.ReleaseKnown(r.Attachment, known, nft.KindPortMap)
		published = publishNext(r, x, next)
		return nil
	}
	return nft.In(r.Call.Session).UpdateThen(ctx, release, func(_ context.Context, err error) error {
		if netfilter.IsMissing(err) {
			r.Warn("%v: nothing to release", err)
			err = nil
		}
		if err != nil {
			return errors.Join(unread, err)
		}
		forgetFlows(r, udp)
		return errors.Join(unread, dir.dropPending(append(published, r.Attachment)...), dir.drop(r.Attachment))
	})
}

// addressesOf returns the container's addresses in prevResult. Rules of the reference name only the
// container; their addresses distinguish them from those of the container's other networks.
func addressesOf(r *spec.Request) []netip.Addr {
	var addrs []netip.Addr
	if r.Prev != nil {
		for _, p := range targetsOf(r.Prev, r.IfName) {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// Release needs no namespace, no prevResult and no mappings, which runtimes omit at DEL: the record has the ports, and
// everything of the attachment has its key.
func (c *conf) Release(op *chained.Op) error {
	ctx := op.Context()
	op.Kept = true // the record stays until the transaction has released the ports
	dir := portOwners(op.Dir)
	old := dir.owner(op.Attachment.Key())
	unlock, err := lock(op)
	if err != nil {
		return err
	}
	defer unlock()
	return releasePorts(ctx, op.Request, dir, knownOf(old), c.portsToForget(old))
}

// portsToForget returns the UDP ports on record, and the valid ones of the configuration, since
// attachments of the reference have no record.
func (c *conf) portsToForget(old *portOwner) (udp []udpPort) {
	for _, m := range c.RuntimeConfig.PortMappings {
		if w, err := m.check(""); err == nil {
			udp = append(udp, udpOf([]spec.Port{w})...)
		}
	}
	if old != nil {
		udp = append(udp, old.Data.UDP...)
	}
	return udp
}

// Check looks for each mapping in the kernel. A missing or changed mapping is an error of code 102.
func (c *conf) Check(op *chained.Op) error {
	r, dir := op.Request, portOwners(op.Dir)
	maps := c.maps(targetsOf(r.Prev, r.IfName))
	if noMaps(maps) {
		return nil
	}
	if err := r.CheckIndexes(); err != nil {
		return err
	}
	holders := dir.holders(r.Attachment)
	pending := dir.hasPending(r.Attachment)
	table := op.Rules()
	err := table.Check(func(x *nft.Tx) error {
		for m := range maps {
			err := x.PortMap(r.Attachment, m)
			var taken *nft.TakenError
			if err != nil && pending && errors.As(err, &taken) && holders(taken.OwnerKey()).sibling {
				continue // published for another interface of the container
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err = netfilter.OrReference(err, table, r.Attachment, nft.KindPortMap); err != nil {
		return spec.Errorf(spec.CodeCheck, "%w", err)
	}
	if link, err := localnetLink(op, maps); err != nil {
		return err
	} else if link != nil {
		return spec.Errorf(spec.CodeCheck, "%s is 0: ports are not reached through 127.0.0.1", localnetKey(link.Name))
	}
	return nil
}

// Probe reports a kernel that cannot publish ports, and a directory in which owners cannot be
// recorded. STATUS has no mappings, so it checks no port.
func (c *conf) Probe(op *chained.Op) error {
	if err := op.Dir.CheckWritable(); err != nil {
		return err
	}
	if err := op.Rules().Probe(); err != nil {
		return spec.Errorf(spec.CodeNotReady, "portmap: %w", err)
	}
	return nil
}

// Collect deletes the ports of stale attachments, including those of the reference whose rules name
// the owner, and publishes pending ports, as DEL does.
func (c *conf) Collect(op *chained.Op) error {
	ctx := op.Context()
	unlock, err := op.Dir.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return collectPorts(ctx, op.Request, portOwners(op.Dir))
}

// collectPorts is Collect under the lock.
func collectPorts(ctx context.Context, r *spec.Request, dir portOwners) error {
	valid := r.ValidKeys()
	stale := func(a spec.Attachment) bool { return a.Network == r.Network && !valid(a.Key()) }
	var next []*nextOwner
	var udp []udpPort
	unread := record.Dir(dir).Each(func(name string) error {
		o := dir.owner(strings.TrimSuffix(name, ".json"))
		if o == nil || !stale(o.Attachment) {
			return nil
		}
		more, err := dir.nextOwners(r, o.ContainerID, stale)
		next, udp = append(next, more...), append(udp, o.Data.UDP...)
		return err
	})
	var published []spec.Attachment
	err := nft.In(r.Call.Session).Update(ctx, func(x *nft.Tx) error {
		x.DeleteStale(r.Network, valid, nft.KindPortMap)
		x.DeleteStaleReference(r.Network, r.Valid, nft.KindPortMap)
		published = publishNext(r, x, next)
		return nil
	})
	if err != nil && !netfilter.IsMissing(err) {
		return err
	}
	if err == nil {
		unread = errors.Join(unread, dir.dropPending(published...))
	}
	forgetFlows(r, udp)
	err = dir.pending().DeleteStale(r.Network, r.Valid)
	os.Remove(string(dir.pending())) // fails unless the directory is empty
	return errors.Join(unread, err, record.Dir(dir).DeleteStale(r.Network, r.Valid))
}

// Holds returns the ports, published or pending.
func (c *conf) Holds(op *chained.Op) (all []spec.Holding) {
	for _, w := range c.mappings {
		all = append(all, spec.Holding{Kind: spec.KindPort, Text: fmt.Sprintf("%s leads to port %d", hostport.Text(w), w.ContainerPort), Data: w})
	}
	return all
}
