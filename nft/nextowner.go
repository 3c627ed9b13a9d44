package nft

import (
	"net/netip"
	"slices"

	"cnibox/spec"
)

// Several networks may have the same addresses, and one element in the packet's path serves
// all of them. It belongs to one attachment; the next owners are in a set of their own, with
// what they lead to, since a comment that nft can load again (128 bytes) has no room for the
// names of two.

// assign gives an address to o, with the chain that it leads to, if any. What another
// attachment of the network had is taken over from it: addresses are given out again only
// when their owner is gone. That of another network keeps the element, and o becomes a next
// owner, or stays one.
func (x *Tx) assign(o spec.Attachment, owned, nextOwners perFamily, ip netip.Addr, chain string, use filterUse) {
	set, next := owned.of(familyOf(ip)), nextOwners.of(familyOf(ip))
	e := Element{set: set, key: ip.AsSlice(), chain: chain, filter: use}
	if now := x.change(set, e.key).new; now != nil {
		key, nextKey := now.OwnerKey(), keyOf(memberName(o), e.key)
		other := key != "" && key != o.Key() && !spec.LabelOf(now.comment, o.Network)
		if other || key != o.Key() && x.change(next, nextKey).new != nil {
			e.set, e.key = next, nextKey
		}
	}
	x.put(o, e)
}

// nextOwners are the sets of owners of addresses, each with that of the next ones.
var nextOwners = [...][2]*perFamily{{&masqSet, &masqNextSet}, {&allowSet, &allowNextSet}, {&zoneSet, &zoneNextSet}}

// transferAddresses gives the addresses that lose their owner to the next owners. These are
// read only when an owner goes.
func (x *Tx) transferAddresses() {
	for _, sets := range nextOwners {
		x.transfer(sets[0].v4, sets[1].v4)
		x.transfer(sets[0].v6, sets[1].v6)
	}
}

// transfer is transferAddresses for one set.
func (x *Tx) transfer(set, next *set) {
	free := func(ch *change) bool { return ch != nil && ch.set == set && ch.old != nil && ch.new == nil }
	if !slices.ContainsFunc(x.changes, free) {
		return
	}
	err := x.s.elements(next, nil, func(e Element) {
		to := x.index[elementID{set, string(e.key[min(ifnameLen, len(e.key)):])}]
		if !free(to) {
			return
		}
		if from := x.found(e); from.new != nil {
			e.set, e.key = set, to.key
			to.new, from.new = &e, nil
		}
	})
	if err != nil {
		x.fail(err)
	}
}

// addr reads the address that ends a key, whatever precedes it.
func (s *set) addr(key []byte) netip.Addr {
	return addrOf(key[max(0, len(key)-int(addrLen(s.family))):], s.family)
}
