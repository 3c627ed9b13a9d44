package nft

import "github.com/cnibox/cnibox/spec"

// listedSets returns the sets whose elements [Table.Elements] lists: those that say what an
// attachment has. The other sets belong to elements of these, or serve later calls.
func listedSets() (all []*set) {
	for _, family := range []byte{v4, v6} {
		for _, sets := range []perFamily{masqSet, allowSet, zoneSet, anyPorts.dnat, anyPorts.condDNAT, hostPorts.dnat, hostPorts.condDNAT} {
			all = append(all, sets.of(family))
		}
	}
	return append(all, macsSet)
}

// Elements lists what attachments have of the kinds KindMasquerade, KindPortMap, KindMACGuard,
// KindFirewall and KindZone; no kinds mean all of these. Each set is read once. A table that is
// missing, or whose rules were flushed, has no elements here, since its elements have no effect.
// Elements takes no lock: a concurrent change may be seen in one set and not in the next. The error
// is os.ErrPermission without CAP_NET_ADMIN.
func (t *Table) Elements(kinds ...Kind) ([]Element, error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	versions := map[byte]string{}
	for _, table := range []byte{inet, bridge} {
		if versions[table], err = s.version(table); err != nil {
			return nil, err
		}
	}
	labelled := func(comment []byte) bool { return spec.LabelKey(string(comment)) != "" }
	var all []Element
	for _, set := range listedSets() {
		if !hasKind(kinds, set.kind) {
			continue
		}
		if versions[set.table] == "" {
			continue
		}
		size := set.keyLen()
		err := s.elements(set, labelled, func(e Element) {
			if len(e.key) >= size { // a set of another program may have shorter keys
				all = append(all, e)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Owned lists what o owns of the given kinds, in the order of the sets, each of which is read; no kinds mean all. It
// is empty if we have no table. It takes no lock, as [Table.Elements].
func (t *Table) Owned(o spec.Attachment, kinds ...Kind) ([]Element, error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	x := newTx(s)
	var all []Element
	for _, ch := range x.owned(kinds, ownedBy(o)) {
		all = append(all, *ch.old)
	}
	return all, x.err
}
