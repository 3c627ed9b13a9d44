package nft

import (
	"net/netip"
	"slices"

	"cnibox/spec"
)

// claim gives an address to o, with the chain that it leads to, if any. Several networks
// may have the same addresses, and one element serves all of them; so it belongs to one
// attachment until that goes, and others wait for it in the set next.
//
// What another attachment of the network had is taken over from it: addresses are given
// out again only when their owner is gone. That of another network keeps the element, and
// o waits until it goes; so it does if it waits already.
func (x *Tx) claim(o spec.Attachment, owned, waiters pair, ip netip.Addr, chain string, use filterUse) {
	in, next := owned.of(familyOf(ip)), waiters.of(familyOf(ip))
	e := element{key: ip.AsSlice(), chain: chain, filter: use}
	if is := x.at(in, e.key).is; is != nil {
		key, waiting := ownerKey(is.owner), keyOf(memberName(o), e.key)
		other := key != "" && key != o.Key() && !spec.LabelOf(is.owner, o.Network)
		if other || key != o.Key() && x.at(next, waiting).is != nil {
			in, e.key = next, waiting
		}
	}
	x.put(o, in, e)
}

// settleHeirs gives the addresses that lose their owner to those who wait for them. The
// kernel is asked who that is only when an owner goes.
func (x *Tx) settleHeirs() {
	for _, sets := range [][2]pair{{masqSet, masqNextSet}, {allowSet, allowNextSet}, {zoneSet, zoneNextSet}} {
		x.settleHeirsOf(sets[0].v4, sets[1].v4)
		x.settleHeirsOf(sets[0].v6, sets[1].v6)
	}
}

// settleHeirsOf is settleHeirs for one set.
func (x *Tx) settleHeirsOf(in, next *set) {
	freed := func(sl *slot) bool { return sl != nil && sl.set == in && sl.was != nil && sl.is == nil }
	if !slices.ContainsFunc(x.slots, freed) {
		return
	}
	err := x.s.elements(next, nil, func(e element) {
		to := x.index[place{in, string(e.key[min(ifnameLen, len(e.key)):])}]
		if !freed(to) {
			return
		}
		if from := x.found(next, e); from.is != nil {
			to.is, from.is = &element{key: to.key, chain: e.chain, owner: e.owner, filter: e.filter}, nil
		}
	})
	if err != nil {
		x.fail(err)
	}
}

// addr reads the address that ends a key, whatever stands before it.
func (s *set) addr(key []byte) netip.Addr {
	return addrOf(key[max(0, len(key)-int(addrLen(s.family))):], s.family)
}
