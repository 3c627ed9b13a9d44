package nft

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// adminPrefix begins the names of the chains in our table for the administrator's rules. They are
// never filled, and never deleted while they have rules. The configured name follows the prefix;
// without the prefix it could be that of a fixed chain.
const adminPrefix = "admin-"

// Allow accepts packets from the address. It accepts packets to the address if they belong to
// connections that the address opened or that a published port translates. An accept in our table
// would not override a drop in another one, so an element in our table only jumps to the
// administrator's chain; the accept rules are in the tables filter of iptables-nft, which are made
// if they are missing.
//
// [Tx.assign] has the rules about its owner.
func (x *Tx) Allow(o spec.Attachment, ip netip.Addr, admin string) {
	x.allow(o, ip, admin, filterRules)
}

// AllowOwnTable is Allow without the rules in the tables filter: packets pass if no other table
// drops them.
func (x *Tx) AllowOwnTable(o spec.Attachment, ip netip.Addr, admin string) {
	x.allow(o, ip, admin, filterNone)
}

func (x *Tx) allow(o spec.Attachment, ip netip.Addr, admin string, use filterUse) {
	if x.record.handles != nil {
		x.records[ip.Unmap()] = x.record
	}
	x.assign(o, allowSet, allowNextSet, ip.Unmap(), x.ensureChain(chain{name: adminPrefix + admin}), use)
}

// RecordZone records that the address is in a zone of firewalld. [Tx.assign] has the rules about
// its owner.
func (x *Tx) RecordZone(o spec.Attachment, ip netip.Addr) {
	x.assign(o, zoneSet, zoneNextSet, ip.Unmap(), "", filterUnset)
}

// RecordOwner records that o owns any firewall element, so that [Tx.AlreadyOwned] need not search
// for it.
func (x *Tx) RecordOwner(o spec.Attachment) {
	x.put(o, Element{set: enlistedSet, key: memberName(o)})
}

// SetBridgePolicy drops packets from the bridge to another bridge with a policy. With isolated it
// also drops packets from the bridge back to it, if the host's rules see them: they see routed
// packets, and bridged ones with br_netfilter.
//
// It holds as long as an attachment that requested it exists; isolation overrides a policy without
// it.
func (x *Tx) SetBridgePolicy(o spec.Attachment, bridge string, isolated bool) {
	member := keyOf(ifname(bridge), memberName(o))
	x.put(o, Element{set: managedBySet, key: member})
	x.share(o, managedSet, ifname(bridge))
	x.share(o, withinSet, keyOf(ifname(bridge), ifname(bridge)))
	if !isolated {
		return
	}
	x.put(o, Element{set: isolatedBySet, key: member})
	x.share(o, isolatedSet, keyOf(ifname(bridge), ifname(bridge)))
}

// memberName identifies an attachment in a key with the length of an interface name: it is the end
// of the attachment's key, in which 56 bits come from its three names.
func memberName(o spec.Attachment) []byte { return memberOf(o.Key()) }

// memberOf is memberName by the attachment's key.
func memberOf(key string) []byte { return ifname(key[keyLen-(ifnameLen-1):]) }

// share ensures an element that all members of a bridge share. Its comment names one of them, and
// is shorter than a key, so releasing an owner does not drop the element.
func (x *Tx) share(o spec.Attachment, set *set, key []byte) {
	if ch := x.change(set, key); ch.new == nil {
		ch.new = &Element{set: set, key: key, comment: sharedBy(memberName(o))}
	}
}

const sharedWord = "member "

// sharedBy returns the comment of a shared element.
func sharedBy(member []byte) string { return sharedWord + unix.ByteSliceToString(member) }

// dropEmptyBridges drops the policy of bridges that lose their last member, and the isolation of
// bridges that lose their last isolated member.
func (x *Tx) dropEmptyBridges() {
	x.dropShared(managedBySet, func(bridge []byte) *change { return x.change(managedSet, bridge) }, func(bridge []byte) {
		x.change(withinSet, keyOf(bridge, bridge)).new = nil
	})
	x.dropShared(isolatedBySet, func(bridge []byte) *change { return x.change(isolatedSet, keyOf(bridge, bridge)) }, func([]byte) {})
}

// dropShared drops the shared element of each bridge that loses its last member in a set, and calls
// then. It reads the members only if the member that the shared element names is removed.
func (x *Tx) dropShared(set *set, shared func(bridge []byte) *change, then func(bridge []byte)) {
	leaving := map[string]*change{} // by bridge
	for _, ch := range slices.Clone(x.changes) {
		if ch.set != set || ch.old == nil || ch.new != nil || len(ch.key) < ifnameLen {
			continue
		}
		if bridge := ch.key[:ifnameLen]; leaving[string(bridge)] == nil && !x.hasMember(set, bridge, shared(bridge)) {
			leaving[string(bridge)] = shared(bridge)
		}
	}
	if len(leaving) == 0 {
		return
	}
	members := map[string][]byte{}
	uses := func(e Element) {
		ch := x.index[elementID{set, string(e.key)}]
		if (ch == nil || ch.new != nil) && len(e.key) >= ifnameLen {
			members[string(e.key[:ifnameLen])] = e.key[ifnameLen:]
		}
	}
	if err := x.s.elements(set, nil, uses); err != nil {
		x.fail(err)
	}
	for _, ch := range slices.Clone(x.changes) {
		if ch.set == set && ch.new != nil {
			uses(*ch.new)
		}
	}
	for _, bridge := range slices.Sorted(maps.Keys(leaving)) { // so that equal updates produce equal batches
		ch := leaving[bridge]
		switch member := members[bridge]; {
		case member == nil:
			ch.new = nil
			then([]byte(bridge))
		case ch.new != nil:
			ch.new = &Element{set: ch.set, key: ch.key, comment: sharedBy(member)}
		}
	}
}

// hasMember reports whether the member named in a bridge's shared element exists.
func (x *Tx) hasMember(set *set, bridge []byte, shared *change) bool {
	if shared.new == nil {
		return false
	}
	member, ok := strings.CutPrefix(shared.new.comment, sharedWord)
	return ok && x.change(set, keyOf(bridge, ifname(member))).new != nil
}

// HasZones reports whether any attachment has an address in a zone of firewalld.
func (t *Table) HasZones() (bool, error) {
	zoned, err := t.zoned(nil, func(x *Tx) []*change { return x.owned([]Kind{KindZone}, func([]byte) bool { return true }) })
	return len(zoned) > 0, err
}

// Zoned lists the addresses in firewalld that only o has: those recorded by [Tx.RecordZone], and
// those of the given ones without an owner here, since the reference plugin records nothing.
func (t *Table) Zoned(o spec.Attachment, ips ...netip.Addr) ([]netip.Addr, error) {
	return t.zoned(ips, func(x *Tx) []*change { return x.ownedOf(o, []Kind{KindZone}) })
}

// LostZones lists the addresses in firewalld that only attachments of the network have, except for
// those whose key is valid: the ones that [Tx.DeleteStale] would drop.
func (t *Table) LostZones(network string, valid func(key string) bool) ([]netip.Addr, error) {
	return t.zoned(nil, func(x *Tx) []*change { return x.owned([]Kind{KindZone}, staleOf(network, valid)) })
}

// zoned lists the given addresses without an owner, and the addresses that have no owner after
// leave.
func (t *Table) zoned(ips []netip.Addr, leave func(*Tx) []*change) (gone []netip.Addr, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	x := newTx(s)
	for _, ip := range ips {
		if ip = ip.Unmap(); x.free(ip) {
			gone = append(gone, ip)
		}
	}
	for _, ch := range leave(x) {
		ch.new = nil
	}
	x.transferAddresses()
	for _, ch := range x.changes {
		if set := zoneSet.of(ch.set.family); ch.set == set && ch.old != nil && ch.new == nil {
			gone = append(gone, set.addr(ch.key))
		}
	}
	return gone, x.err
}

// free reports whether no attachment has the address after this update.
func (x *Tx) free(ip netip.Addr) bool {
	for _, sets := range []perFamily{allowSet, zoneSet} {
		if x.change(sets.of(familyOf(ip)), ip.AsSlice()).new != nil {
			return false
		}
	}
	return true
}
