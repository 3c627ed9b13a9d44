package sbr

import (
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An ownRule is a rule of an attachment.
type ownRule struct {
	Src   netip.Addr `json:"src"`
	Table int        `json:"table"`
}

// ruleRecord stores the rules that DEL deletes.
type ruleRecord struct {
	Rules []ownRule `json:"rules"`
}

// remember records rules before they are added, in addition to those of an earlier ADD for this
// interface.
func (s *routing) remember(rules []ownRule) error {
	id, err := s.ID()
	if err != nil {
		return err
	}
	all := slices.Clone(rules)
	if old := record.Find[ruleRecord](s.Dir, s.Attachment); old != nil && old.LinkID == id {
		for _, m := range old.Data.Rules {
			if !slices.Contains(rules, m) {
				all = append(all, m)
			}
		}
	}
	return chained.WriteRecord(s.Op, record.Name(s.Attachment), ruleRecord{all})
}

// ownAddresses returns the addresses of prevResult, in CHECK and RESTORE those alone that ADD has given a
// rule: later plugins of the chain may have added others.
func (s *routing) ownAddresses() []spec.IP {
	ips := s.Prev.Addresses(s.IfName, nil)
	if s.Call.Verb == spec.Add {
		return ips
	}
	rec := record.Find[ruleRecord](s.Dir, s.Attachment)
	if rec == nil {
		return ips
	}
	return slices.DeleteFunc(ips, func(ip spec.IP) bool {
		return !slices.ContainsFunc(rec.Data.Rules, func(r ownRule) bool { return r.Src == ip.Address.Addr() })
	})
}

// recorded returns the table on record for an address whose rule is gone, which RESTORE uses again;
// 0: none.
func (s *routing) recorded(ip netip.Addr) int {
	if !s.Restoring() {
		return 0
	}
	if rec := record.Find[ruleRecord](s.Dir, s.Attachment); rec != nil {
		for _, m := range rec.Data.Rules {
			if m.Src == ip {
				return m.Table
			}
		}
	}
	return 0
}

// ownRules returns the attachment's rules: those on record, if they are in this namespace.
// Attachments of the reference and of earlier versions have no record; theirs are the rules of the
// interface's addresses and of those in prevResult. An interface of another attachment is ignored.
// It may have the address, and so the rule, of the deleted one.
func (s *routing) ownRules() ([]ownRule, error) {
	rec := record.Find[ruleRecord](s.Dir, s.Attachment)
	var head *record.Head
	if rec != nil {
		head = &rec.Head
	}
	own, err := s.Owned(head)
	if err != nil {
		return nil, err
	}
	if !own {
		return s.rulesOfGone(rec)
	}
	if rec != nil {
		if id, err := s.ID(); err != nil || rec.LinkID == id {
			return rec.Data.Rules, err
		}
	}
	addrs := make(map[netip.Addr]bool)
	if err := s.addrs(s.Link.Index, addrs); err != nil {
		return nil, err
	}
	for _, ip := range s.Prev.Addresses(s.IfName, nil) {
		addrs[ip.Address.Addr()] = true
	}
	var rules []ownRule
	for _, rule := range s.rules {
		if isSource(rule) && addrs[rule.Src.Addr()] {
			rules = append(rules, ownRule{rule.Src.Addr(), rule.Table})
		}
	}
	return rules, nil
}

// rulesOfGone returns the rules of a record whose interface is gone, if they are in this namespace
// and no other interface has the address. rec may be nil.
func (s *routing) rulesOfGone(rec *record.Record[ruleRecord]) (rules []ownRule, err error) {
	if rec == nil {
		return nil, nil
	}
	id, err := s.ID()
	if err != nil || !rec.SameNS(id) {
		return nil, err
	}
	links, err := s.Cont.Links()
	if err != nil {
		return nil, err
	}
	used := make(map[netip.Addr]bool)
	for _, l := range links {
		if err := s.addrs(l.Index, used); err != nil {
			return nil, err
		}
	}
	for _, m := range rec.Data.Rules {
		if !used[m.Src] {
			rules = append(rules, m)
		}
	}
	return rules, nil
}

// addrs adds the addresses of a link to a set.
func (s *routing) addrs(link uint32, into map[netip.Addr]bool) error {
	addrs, err := s.Cont.Addrs(link)
	for _, a := range addrs {
		into[a.Prefix.Addr()] = true
	}
	return rtnl.SkipAbsent(err)
}

// rewriteRecord records the rules that DEL has not removed.
func (s *routing) rewriteRecord(rules []ownRule) error {
	rec := record.Find[ruleRecord](s.Dir, s.Attachment)
	if rec == nil || len(rules) == 0 {
		return nil
	}
	s.Kept, rec.Data.Rules = true, rules
	return rec.Write(s.Dir)
}
