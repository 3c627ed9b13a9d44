package nft

import (
	"net"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// The kernel finds one element by its key alone; a dump of a set returns the elements of all attachments. So
// plugins name the keys of what an attachment may own, as prevResult or their record has it, and the comment of
// the element confirms the owner.

// A Known has keys of elements that an attachment may own.
type Known []knownKey

type knownKey struct {
	id       elementID
	expected bool // otherwise the attachment need not have it
}

// expectedIn returns a key that the attachment has.
func expectedIn(set *set, key []byte) knownKey { return knownKey{elementID{set, string(key)}, true} }

// possibleIn returns a key that the attachment may have.
func possibleIn(set *set, key []byte) knownKey { return knownKey{elementID{set, string(key)}, false} }

// IfAny returns the same keys, none of which the attachment need have.
func (k Known) IfAny() Known {
	all := slices.Clone(k)
	for i := range all {
		all[i].expected = false
	}
	return all
}

// KnownMasquerade names what [Tx.Masquerade] puts for an address.
func KnownMasquerade(ip netip.Addr) Known {
	ip = ip.Unmap()
	return Known{expectedIn(masqSet.of(familyOf(ip)), ip.AsSlice())}
}

// KnownGuard names what [Tx.GuardMAC] puts.
func KnownGuard(port string, mac net.HardwareAddr) Known {
	name := ifname(port)
	return Known{expectedIn(guardedSet, name), expectedIn(macsSet, keyOf(name, mac))}
}

// KnownAdverts names what [Tx.DropAdverts] puts.
func KnownAdverts(port string) Known { return Known{expectedIn(advertSet, ifname(port))} }

// KnownPort names what [Tx.PortMap] puts. The attachment need not have it: the port may be that of another one.
func KnownPort(m PortMap) Known {
	m.normalize()
	sets, key := m.place()
	family := familyOf(m.Target.Addr())
	return Known{
		possibleIn(sets.dnat.of(family), key), possibleIn(sets.condDNAT.of(family), key),
		possibleIn(hairpinSet.of(family), m.hairpinKey()),
	}
}

// KnownFirewall names what the firewall may put for o: its addresses may have rules or be in a zone, and each of the
// links may be a bridge with a policy.
func KnownFirewall(o spec.Attachment, ips []netip.Addr, links []string) Known {
	all := Known{expectedIn(enlistedSet, memberName(o))}
	for _, ip := range ips {
		ip = ip.Unmap()
		all = append(all, possibleIn(allowSet.of(familyOf(ip)), ip.AsSlice()), possibleIn(zoneSet.of(familyOf(ip)), ip.AsSlice()))
	}
	for _, l := range links {
		all = append(all, possibleIn(managedBySet, keyOf(ifname(l), memberName(o))))
	}
	return all
}

// beside returns the set that may have an element with the same key if this set has one; nil: none.
func (s *set) beside() *set {
	if s == managedBySet {
		return isolatedBySet
	}
	for _, sets := range []portSets{anyPorts, hostPorts} {
		if s.family != 0 && sets.condDNAT.of(s.family) == s {
			return sets.condDispatch.of(s.family)
		}
	}
	return nil
}

// ReleaseKnown is [Tx.Release] for an attachment whose elements are known. It asks for these alone, and reads the sets of
// a kind only where an expected element is not o's, as after a DEL before. No kinds mean none. Known is nil where they are not
// known: then it is Release.
func (x *Tx) ReleaseKnown(o spec.Attachment, known Known, kinds ...Kind) {
	if known == nil {
		x.Release(o, kinds...)
		return
	}
	if !x.releaseLater(o, kinds) {
		if rest := x.dropKnown(o, known, kinds); len(rest) > 0 {
			x.drop(rest, ownedBy(o))
		}
	}
	x.releaseOld(o, kinds)
}

// dropKnown drops the known elements that are o's, and returns the kinds of which an expected one is not.
func (x *Tx) dropKnown(o spec.Attachment, known Known, kinds []Kind) (rest []Kind) {
	isOwned := ownedBy(o)
	drop := func(set *set, key string) bool {
		if !x.hasOurs(set.table) || x.isAbsent(set, []byte(key)) {
			return false
		}
		ch := x.change(set, []byte(key))
		owned := ch.wanted(isOwned)
		if owned {
			x.assign(ch, nil)
		}
		return owned
	}
	for _, k := range known {
		switch kind := k.id.set.kind; {
		case !slices.Contains(kinds, kind):
		case drop(k.id.set, k.id.key):
			if beside := k.id.set.beside(); beside != nil {
				drop(beside, k.id.key)
			}
		case k.expected && !slices.Contains(rest, kind):
			rest = append(rest, kind)
		}
	}
	return rest
}
