package nft

import (
	"net/netip"
	"slices"

	"cnibox/spec"
)

// A claimable is the place of a set with an element for each address, and that of a set
// of who waits for one. Several networks may have the same addresses, and one element
// serves all of them; so it belongs to one attachment until that goes.
type claimable struct{ in, next int }

var (
	masqAddrs  = claimable{masqSet, masqNextSet}
	allowAddrs = claimable{allowSet, allowNextSet}
	zoneAddrs  = claimable{zoneSet, zoneNextSet}
)

// sets returns both sets of a family.
func (c claimable) sets(family byte) (in, next *set) {
	return setOf(c.in, family), setOf(c.next, family)
}

// claim gives an address to o, with the chain that it leads to, if any.
//
// What another attachment of the network had is taken over from it: addresses are given
// out again only when their owner is gone. That of another network keeps the element, and
// o waits until it goes; so it does if it waits already.
func (x *Tx) claim(o spec.Attachment, c claimable, ip netip.Addr, chain string, use filterUse) {
	in, next := c.sets(familyOf(ip))
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
	for _, c := range []claimable{masqAddrs, allowAddrs, zoneAddrs} {
		x.settleHeirsOf(c.sets(v4))
		x.settleHeirsOf(c.sets(v6))
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
