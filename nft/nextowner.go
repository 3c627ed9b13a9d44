package nft

import (
	"net/netip"
	"slices"

	"cnibox/spec"
)

// Several networks may have the same addresses, and one element in the packet path serves all of
// them. It belongs to one attachment. The next owners are in a set of their own with their
// verdicts, since a comment that nft can load again (128 bytes) has no room for the names of two
// owners.

// assign gives an address to o, with the chain to which it jumps, if any. The address of another
// attachment of the same network is taken over, since IPAM reassigns an address only after its
// owner is gone. An owner of another network keeps the element, and o becomes a next owner, or
// stays one.
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

// nextOwners pairs the sets of address owners with those of the next owners.
var nextOwners = [...][2]*perFamily{{&masqSet, &masqNextSet}, {&allowSet, &allowNextSet}, {&zoneSet, &zoneNextSet}}

// transferAddresses transfers addresses that lose their owner to the next owners, which are read
// only in this case.
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

// addr reads the address at the end of a key.
func (s *set) addr(key []byte) netip.Addr {
	return addrOf(key[max(0, len(key)-int(addrLen(s.family))):], s.family)
}
