package nft

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A filterUse says whether an address that is allowed has rules in the table filter. It is
// recorded with the element: CHECK misses no rules that were never made, and those that are
// lost are made again for the addresses that had them.
type filterUse byte

const (
	filterUnset filterUse = iota // of an element that is not about filters
	filterRules
	filterNone
)

// filterWords end the comment of an element, behind its owner.
var filterWords = [...]string{filterRules: " filter", filterNone: " nofilter"}

// readOwner takes a comment apart. No name in it has a blank.
func readOwner(comment []byte) (owner string, use filterUse) {
	owner = unix.ByteSliceToString(comment)
	for use, word := range filterWords {
		if before, ok := strings.CutSuffix(owner, word); ok && word != "" {
			return before, filterUse(use)
		}
	}
	return owner, filterUnset
}

// A filterPlan is what the table filter of one family lacks, and what the update deletes from it.
type filterPlan struct {
	family   byte
	allowed  []allowedAddr
	released []netip.Addr // whose rules are deleted

	hasForward bool            // FORWARD exists
	isolates   bool            // FORWARD leads to the reference's policies of bridges
	noJump     bool            // FORWARD does not lead to CNI-FORWARD
	rules      []installedRule // of CNI-FORWARD, as far as they are read

	records map[netip.Addr]ruleRecord
	found   map[netip.Addr][]uint64 // handles of the rules of the allowed addresses
	jumps   map[string]uint64       // of those to the administrators' chains

	admins  []string        // chains that CNI-FORWARD does not lead to
	missing []acceptRule    // of CNI-FORWARD
	deleted []installedRule // rules to delete

	noTable bool     // the table is to be made
	chains  []string // to be made
}

// An allowedAddr is an address that is to have rules, under the administrator's chain.
type allowedAddr struct {
	ip    netip.Addr
	admin string
	had   bool // it was given rules, wherever they are
	fresh bool // it was not allowed before, so that rules of it are not looked for
}

// RuleHandles are the handles of the rules that the tables filter have for addresses, with that of
// the jump to the administrator's chain, as a record has them. The kernel can be asked for a rule by
// its handle, and without it only for all rules of the chain.
type RuleHandles map[netip.Addr][]uint64

// A ruleRecord is what [Tx.Handles] was given.
type ruleRecord struct {
	handles RuleHandles
	anew    bool
}

// Handles gives the handles on record of the attachment that is allowed or released next, which may
// be none. The record is not trusted: where one of the rules is not under its handle, the chain is
// read. After the update it has the handles of the rules that are there.
//
// anew is for an attachment that the host has not had before: then the chain is not read to find out
// whether it has rules.
func (x *Tx) Handles(record RuleHandles, anew bool) {
	x.record = ruleRecord{record, anew}
	for ip := range record {
		x.records[ip] = x.record
	}
}

// filters compares the tables filter with what the update allows and releases, or CHECK
// looks for.
func (x *Tx) filters(check bool) (plans []*filterPlan, err error) {
	for _, family := range []byte{v4, v6} {
		p := &filterPlan{family: family, records: x.records}
		set, next := allowSet.of(family), allowNextSet.of(family)
		for _, ch := range x.changes {
			if ch.set != set && ch.set != next {
				continue
			}
			ip := set.addr(ch.key)
			switch {
			case ch.new != nil && ch.new.filter == filterRules:
				if ch.put {
					had := ch.old != nil && ch.old.filter == filterRules
					p.allow(allowedAddr{ip, adminName(ch.new), had, ch.set == set && ch.old == nil && x.records[ip].anew && !check})
				}
			case ch.old != nil && (ch.new == nil || ch.new.filter != ch.old.filter):
				if owner := x.change(set, ip.AsSlice()).new; owner == nil || owner.filter == filterNone {
					p.leave(ip)
				}
			}
		}
		for _, ip := range x.oldIPs {
			if familyOf(ip) == family && x.free(ip) {
				p.leave(ip)
			}
		}
		if err := p.read(x.s); err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	return plans, x.err
}

// adminName returns the administrator's chain of an address, by that of our table.
func adminName(e *Element) string { return strings.TrimPrefix(e.chain, adminPrefix) }

// allow adds an address, once.
func (p *filterPlan) allow(a allowedAddr) {
	if !slices.ContainsFunc(p.allowed, func(o allowedAddr) bool { return o.ip == a.ip }) {
		p.allowed = append(p.allowed, a)
	}
}

// leave adds an address whose rules are deleted, once.
func (p *filterPlan) leave(ip netip.Addr) {
	if !slices.Contains(p.released, ip) {
		p.released = append(p.released, ip)
	}
}

// chain is CNI-FORWARD.
func (p *filterPlan) chain() chainID { return chainID{p.family, filterTable, filterChain} }

// read looks at the chains. Where FORWARD leads to CNI-FORWARD both are there. CNI-FORWARD is read as
// a whole where handles do not do: 1000 containers have 3000 rules.
func (p *filterPlan) read(s *sock) error {
	if len(p.allowed) == 0 && len(p.released) == 0 {
		return nil
	}
	if len(p.allowed) > 0 {
		rules, err := s.rulesOf(p.family, filterTable, filterHook)
		if err != nil {
			return err
		}
		p.noJump = !slices.ContainsFunc(rules, isHook)
		p.isolates = slices.ContainsFunc(rules, func(r installedRule) bool { return r.jump() == "CNI-ISOLATION-STAGE-1" })
		if p.hasForward = len(rules) > 0; !p.hasForward {
			if p.hasForward, _, err = s.getChain(chainID{p.family, filterTable, filterHook}); err != nil {
				return err
			}
		}
	}
	if byHandle, err := p.readByHandle(s); err != nil || byHandle {
		return err
	}
	rules, err := s.rulesOf(p.family, filterTable, filterChain)
	p.rules = rules
	p.compare()
	return err
}

// readByHandle reads the rules of the addresses by the handles on record; false: the chain is to be
// read, since one of them is not there, or to read all of it takes less time.
func (p *filterPlan) readByHandle(s *sock) (bool, error) {
	var handles []uint64
	about := slices.Clone(p.released)
	fresh := map[netip.Addr]bool{}
	for _, a := range p.allowed {
		if fresh[a.ip] = a.fresh; !a.fresh {
			about = append(about, a.ip)
		}
	}
	for _, ip := range about {
		handles = append(handles, p.records[ip].handles[ip]...)
	}
	slices.Sort(handles)
	handles = slices.Compact(handles) // addresses have the jump in common
	if p.noJump || len(about) > 0 && len(handles) == 0 || len(handles) > mostAsked {
		return false, nil
	}
	var err error
	if p.rules, err = s.getRules(p.chain(), handles); err != nil {
		return false, err
	}
	p.compare()
	if len(p.deleted) < len(p.released)*len(acceptRules(netip.Addr{})) || slices.ContainsFunc(p.missing, func(r acceptRule) bool { return !fresh[r.ip] }) {
		return false, nil
	}
	for _, admin := range p.admins {
		if ok, err := p.hasJump(s, admin); err != nil || !ok {
			return false, err
		}
	}
	p.admins = nil
	return true, nil
}

// hasJump reports whether any rule jumps to an administrator's chain, as far as the kernel's count of
// them says, which includes the chain's own rules. It is for an ADD that has no handle of the jump.
func (p *filterPlan) hasJump(s *sock, admin string) (bool, error) {
	_, use, err := s.getChain(chainID{p.family, filterTable, admin})
	if err != nil || use == 0 {
		return false, err
	}
	rules, err := s.rulesOf(p.family, filterTable, admin)
	return use > len(rules), err
}

// isHook reports whether a rule is that of FORWARD that jumps to CNI-FORWARD.
func isHook(r installedRule) bool { return r.jumps(hookComment, filterChain) }

// compare finds out which rules of CNI-FORWARD are missing and which are deleted.
func (p *filterPlan) compare() {
	p.missing, p.deleted, p.admins = nil, nil, nil
	p.found, p.jumps = map[netip.Addr][]uint64{}, map[string]uint64{}
	missing, allowed := map[acceptRule]bool{}, map[netip.Addr]bool{}
	about := slices.Clone(p.released)
	for _, a := range p.allowed {
		allowed[a.ip] = true
		about = append(about, a.ip)
		for _, r := range acceptRules(a.ip) {
			missing[r] = true
		}
		if slices.Contains(p.admins, a.admin) || p.jumps[a.admin] != 0 {
			continue
		}
		leads := func(r installedRule) bool { return r.jumps(adminComment, a.admin) }
		if i := slices.IndexFunc(p.rules, leads); i >= 0 {
			p.jumps[a.admin] = p.rules[i].handle
		} else {
			p.admins = append(p.admins, a.admin)
		}
	}
	for i := range p.rules {
		if !p.rules[i].mentions(about) {
			continue
		}
		if r, ok := p.rules[i].acceptRule(); ok {
			delete(missing, r)
			switch {
			case allowed[r.ip]:
				p.found[r.ip] = append(p.found[r.ip], p.rules[i].handle)
			case slices.Contains(p.released, r.ip):
				p.deleted = append(p.deleted, p.rules[i])
			}
		}
	}
	for _, a := range p.allowed {
		for _, r := range acceptRules(a.ip) {
			if missing[r] {
				p.missing = append(p.missing, r)
			}
		}
	}
}

// mentions reports whether a rule may be about one of the addresses. Most are about none, and
// to take a rule apart takes fifty times as long.
func (r *installedRule) mentions(ips []netip.Addr) bool {
	return len(ips) > 10 || slices.ContainsFunc(ips, func(ip netip.Addr) bool { return bytes.Contains(r.exprs, ip.AsSlice()) })
}

// lacks says what CHECK finds missing, in the words of iptables. Addresses that were given
// no rules lack none as long as there is no FORWARD, which may drop.
func (p *filterPlan) lacks() (words []string) {
	if len(p.allowed) == 0 || !p.hasForward && !slices.ContainsFunc(p.allowed, func(a allowedAddr) bool { return a.had }) {
		return nil
	}
	rule := func(r any, chain, remedy string) {
		words = append(words, fmt.Sprintf("rule %s of chain %s of %s%s", r, chain, p.table(), remedy))
	}
	if p.noJump {
		rule("-j "+filterChain, filterHook, " (the next ADD makes all rules anew)")
	}
	for _, name := range p.admins {
		rule("-j "+name, filterChain, "")
	}
	for _, m := range p.missing {
		rule(m, filterChain, "")
	}
	return words
}

// noteLacking notes whose addresses lack what the plan makes.
func (p *filterPlan) noteLacking(x *Tx) {
	if len(p.lacks()) == 0 {
		return
	}
	lacks := map[netip.Addr]bool{}
	for _, m := range p.missing {
		lacks[m.ip] = true
	}
	set, next := allowSet.of(p.family), allowNextSet.of(p.family)
	x.lackedBy(func(ch *change) bool {
		return (ch.set == set || ch.set == next) && (p.noJump || len(p.admins) > 0 || lacks[set.addr(ch.key)])
	})
}

// prepare completes the plan of an update that is to be made. Where FORWARD leads to
// CNI-FORWARD no more, or does not yet, all addresses get their rules, not only those of
// this update: those of a version that made none where there was no FORWARD, too.
func (p *filterPlan) prepare(x *Tx) error {
	if len(p.allowed) == 0 {
		return nil
	}
	if p.noJump {
		set := allowSet.of(p.family)
		err := x.s.elements(set, nil, func(e Element) {
			ch := x.found(e)
			if ch.new != nil && ch.new.filter != filterNone && CheckChainName(adminName(ch.new)) == nil {
				p.allow(allowedAddr{ip: set.addr(ch.key), admin: adminName(ch.new)})
			}
		})
		if err != nil {
			return err
		}
		p.compare()
	}
	p.noTable = !p.hasForward && !x.leftovers().tables[chainID{family: p.family, table: filterTable}]
	return p.findChains(x.s)
}

// findChains finds out which chains are to be made. To make one again that is there
// does nothing, but for 10 ms that the kernel takes until no packet can see
// the old one. A chain with rules, or one that is jumped to, is there.
func (p *filterPlan) findChains(s *sock) error {
	names := slices.Clone(p.admins)
	if p.noJump && len(p.rules) == 0 {
		names = append(names, filterChain)
	}
	for _, name := range names {
		ok := false
		if !p.noTable {
			var err error
			if ok, _, err = s.getChain(chainID{p.family, filterTable, name}); err != nil {
				return err
			}
		}
		if !ok {
			p.chains = append(p.chains, name)
		}
	}
	return nil
}

// change adds what is missing and deletes the rules of released addresses. The jumps come first in
// their chains, as the reference puts them.
func (p *filterPlan) change(b *batch) {
	tbl := tableOf(p.family, filterTable)
	gone := leftovers{rules: p.deleted}
	gone.remove(b)
	if len(p.allowed) == 0 {
		return
	}
	p.makeTable(b)
	for _, name := range p.chains {
		b.add(step{what: "chain " + name + " of " + p.table()}).AddChain(&nftables.Chain{Table: tbl, Name: name})
	}
	for _, name := range p.admins {
		s := p.ruleOf(filterChain)
		s.made = func(handle uint64) { p.jumps[name] = handle }
		b.add(s).InsertRule(newRule(p.family, filterTable, filterChain, commentedJump(adminComment, name)))
	}
	if p.noJump {
		b.add(p.ruleOf(filterHook)).InsertRule(newRule(p.family, filterTable, filterHook, commentedJump(hookComment, filterChain)))
	}
	for _, m := range p.missing {
		s := p.ruleOf(filterChain)
		s.made = func(handle uint64) { p.found[m.ip] = append(p.found[m.ip], handle) }
		b.add(s).AddRule(newRule(p.family, filterTable, filterChain, m.rule()))
	}
}

// updateRecords brings the records up to date, after the batch.
func (p *filterPlan) updateRecords() {
	for _, ip := range p.released {
		delete(p.records[ip].handles, ip)
	}
	for _, a := range p.allowed {
		record := p.records[a.ip].handles
		if record == nil {
			continue
		}
		handles := p.found[a.ip]
		if jump := p.jumps[a.admin]; jump != 0 {
			handles = append(handles, jump)
		}
		slices.Sort(handles)
		record[a.ip] = handles
	}
}

// makeTable makes table and FORWARD as iptables-nft does where they are missing. One that
// appears meanwhile fails the batch (EEXIST), which would set its policy to accept.
func (p *filterPlan) makeTable(b *batch) {
	tbl := tableOf(p.family, filterTable)
	if p.noTable {
		b.add(step{what: p.table(), flags: netlink.Excl}).AddTable(tbl)
	}
	if p.hasForward {
		return
	}
	b.add(step{what: "chain " + filterHook + " of " + p.table(), flags: netlink.Excl}).AddChain(&nftables.Chain{
		Table: tbl, Name: filterHook, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: new(nftables.ChainPolicyAccept),
	})
}

// ruleOf is the step of a rule that is made.
func (p *filterPlan) ruleOf(chain string) step {
	return step{what: "rule of chain " + chain + " of " + p.table(), needs: filterNeeds}
}

// table names the table for people.
func (p *filterPlan) table() string {
	if p.family == v6 {
		return "table ip6 " + filterTable
	}
	return "table ip " + filterTable
}
