package nft

import "cnibox/spec"

// Reference reports whether the reference plugins' rules for o are there, of one
// kind: CHECK of an attachment that they made finds nothing of it in our tables. No lock
// is taken. Rules of iptables-legacy are not seen.
func (t *Table) Reference(o spec.Attachment, kind Kind) (bool, error) {
	s, err := dial(t.ns)
	if err != nil {
		return false, err
	}
	defer s.close()
	x := newTx(s)
	x.releaseOld(o, []Kind{kind})
	return len(x.old.rules)+len(x.old.chains) > 0, x.err
}
