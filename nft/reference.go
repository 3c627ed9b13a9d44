package nft

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/spec"
)

// HasReferenceRules reports whether the reference plugins' rules of one kind for o exist: our
// tables have nothing for an attachment that the reference made. It takes no lock. It does not see
// rules of iptables-legacy.
func (t *Table) HasReferenceRules(o spec.Attachment, kind Kind) (bool, error) {
	s, err := t.dial()
	if err != nil {
		return false, err
	}
	defer s.Close()
	x := newTx(s)
	x.releaseOld(o, []Kind{kind})
	return len(x.old.rules)+len(x.old.chains) > 0, x.err
}

// ReferenceFirewall is HasReferenceRules for the rules of the reference's firewall, which contain
// nothing but the address. It reports whether each address has its two rules and whether the chains
// are jumped to; with policed also whether bridges have policies.
func (t *Table) ReferenceFirewall(ips []netip.Addr, admin string, policed bool) (bool, error) {
	s, err := t.dial()
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
