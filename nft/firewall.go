package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// adminPrefix begins the names of the chains in our table for the administrator's rules. They are
// never filled, and never deleted while they have rules. The configured name follows the prefix;
// without the prefix it could be that of a fixed chain.
const adminPrefix = "admin-"

// CheckChainName rejects chain names that iptables does not accept, or that nft cannot read without
// quotes, which it does not accept for chain names. The error completes a sentence that begins with
// the name.
func CheckChainName(name string) error {
	const longest = 28 // XT_EXTENSION_MAXNAMELEN without the zero byte, linux/netfilter/x_tables.h
	letters := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	if name == "" || len(name) > longest || !strings.ContainsRune(letters, rune(name[0])) || strings.Trim(name, letters+"0123456789-") != "" {
		return fmt.Errorf(`the name of a chain has up to %d letters, digits, "-" and "_", a letter or "_" first`, longest)
	}
	return nil
}

// Allow accepts packets from the address. It accepts packets to the address if they belong to
// connections that the address opened or that a published port translates. An accept in our table
// would not override a drop in another one, so an element in our table only jumps to the
// administrator's chain; the accept rules are in the tables filter of iptables-nft, which are made
// if they are missing. The address of another attachment is taken over.
func (x *Tx) Allow(o spec.Attachment, ip netip.Addr, admin string) {
	x.allow(o, ip, admin, filterRules)
}

// AllowOwnTable is Allow without the rules in the tables filter: packets pass if no other table
// drops them.
func (x *Tx) AllowOwnTable(o spec.Attachment, ip netip.Addr, admin string) {
	x.allow(o, ip, admin, filterNone)
}

func (x *Tx) allow(o spec.Attachment, ip netip.Addr, admin string, use filterUse) {
	ip = ip.Unmap()
	x.put(o, Element{set: allowSet.of(familyOf(ip)), key: ip.AsSlice(), chain: x.ensureChain(chain{name: adminPrefix + admin}), filter: use})
}

// RecordZone records that the address is in a zone of firewalld. The address of another attachment is taken over.
func (x *Tx) RecordZone(o spec.Attachment, ip netip.Addr) {
	ip = ip.Unmap()
	x.put(o, Element{set: zoneSet.of(familyOf(ip)), key: ip.AsSlice()})
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
		x.assign(ch, &Element{set: set, key: key, comment: sharedBy(memberName(o))})
	}
}

const sharedWord = "member "

// sharedBy returns the comment of a shared element.
func sharedBy(member []byte) string { return sharedWord + unix.ByteSliceToString(member) }

// dropEmptyBridges drops the policy of bridges that lose their last member, and the isolation of
// bridges that lose their last isolated member.
func (x *Tx) dropEmptyBridges() {
	x.dropShared(managedBySet, func(bridge []byte) *change { return x.change(managedSet, bridge) }, func(bridge []byte) {
		x.assign(x.change(withinSet, keyOf(bridge, bridge)), nil)
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
			x.assign(ch, nil)
			then([]byte(bridge))
		case ch.new != nil:
			x.assign(ch, &Element{set: ch.set, key: ch.key, comment: sharedBy(member)})
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

// Zones lists the addresses that [Tx.RecordZone] has recorded, with their owners.
func (t *Table) Zones() ([]Element, error) { return t.zones(nil) }

// LostZones lists those of [Table.Zones] that attachments of the network have, except for
// those whose key is valid: the ones that [Tx.DeleteStale] would drop.
func (t *Table) LostZones(network string, valid func(key string) bool) ([]Element, error) {
	return t.zones(staleOf(network, valid))
}

func (t *Table) zones(want filter) (all []Element, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for _, set := range []*set{zoneSet.v4, zoneSet.v6} {
		if err := s.elements(set, want, func(e Element) { all = append(all, e) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Unowned lists those of the addresses that no attachment has here.
func (t *Table) Unowned(ips ...netip.Addr) (free []netip.Addr, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	x := newTx(s)
	for _, ip := range ips {
		if x.free(ip.Unmap()) {
			free = append(free, ip.Unmap())
		}
	}
	return free, x.err
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
