package nft

import (
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// releaseLater defers a Release to releaseTogether, if many attachments are released in one
// transaction; false: the caller drops the elements at once.
func (x *Tx) releaseLater(o spec.Attachment, kinds []Kind) bool {
	if x.releases == nil || len(kinds) == 0 {
		return false
	}
	for _, k := range kinds {
		if x.releases[k] == nil {
			x.releases[k] = map[string]bool{}
		}
		x.releases[k][o.Key()] = true
	}
	return true
}

// releaseTogether drops the elements of deferred releases and reads each set once for all owners.
// Elements that are put later stay.
func (x *Tx) releaseTogether() {
	if len(x.releases) == 0 {
		return
	}
	owners := x.releases
	x.releases = map[Kind]map[string]bool{}
	for k := KindMasquerade; k <= KindAdverts; k++ {
		if owned := owners[k]; owned != nil {
			x.drop([]Kind{k}, func(c []byte) bool { return owned[string(c[:keyLen])] })
		}
	}
}

func (x *Tx) all(updates []update) error {
	first := updates[0].s.Key()
	if slices.ContainsFunc(updates, func(u update) bool { return u.s.Key() != first }) {
		x.releases = map[Kind]map[string]bool{}
	}
	for _, u := range updates {
		x.addrs, x.record = nil, ruleRecord{}
		if err := u.fn(x); err != nil {
			return err
		}
	}
	x.releaseTogether()
	return nil
}

// rulesAt returns the rules of a chain of the reference, which are read once.
func (x *Tx) rulesAt(c chainID) []installedRule {
	if rules, ok := x.old.read[c]; ok {
		return rules
	}
	rules, err := x.s.rulesOf(c.family, c.table, c.name)
	if err != nil {
		x.fail(err)
	}
	if x.old.read == nil {
		x.old.read = map[chainID][]installedRule{}
	}
	x.old.read[c] = slices.Clip(rules)
	return rules
}
