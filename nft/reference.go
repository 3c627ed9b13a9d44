package nft

import (
	"net/netip"
	"slices"

	"cnibox/spec"
)

// HasReferenceRules reports whether the reference plugins' rules for o are there, of one
// kind: CHECK of an attachment that they made finds nothing of it in our tables. No lock
// is taken. Rules of iptables-legacy are not seen.
func (t *Table) HasReferenceRules(o spec.Attachment, kind Kind) (bool, error) {
	s, err := dial(t.ns)
	if err != nil {
		return false, err
	}
	defer s.Close()
	x := newTx(s)
	x.releaseOld(o, []Kind{kind})
	return len(x.old.rules)+len(x.old.chains) > 0, x.err
}

// ReferenceFirewall is HasReferenceRules for the rules of the reference's firewall, which
// have nothing but the address: it reports whether each address has its two, and the
// chains lead to them; with policed also whether bridges have policies.
func (t *Table) ReferenceFirewall(ips []netip.Addr, admin string, policed bool) (bool, error) {
	s, err := dial(t.ns)
	if err != nil {
		return false, err
	}
	defer s.Close()
	for _, family := range []byte{v4, v6} {
		p := &filterPlan{family: family}
		for _, ip := range ips {
			if familyOf(ip) == family {
				p.allow(allowedAddr{ip: ip, admin: admin})
			}
		}
		if err := p.read(s); err != nil {
			return false, err
		}
		p.missing = slices.DeleteFunc(p.missing, func(r acceptRule) bool { return r.states == dnatState })
		if len(p.allowed) > 0 && (!p.hasForward || p.lacks() != nil || policed && !p.isolates) {
			return false, nil
		}
	}
	return len(ips) > 0, nil
}
