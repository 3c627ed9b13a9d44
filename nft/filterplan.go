package nft

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A filterUse says whether an allowed address has rules in the table filter. It is recorded with
// the element: CHECK does not report rules as missing that were never made, and lost rules are made
// again for the addresses that had them.
type filterUse byte

const (
	filterUnset filterUse = iota // not recorded
	filterRules
	filterNone
)

// filterWords end the comment of an element, after its owner.
var filterWords = [...]string{filterRules: " filter", filterNone: " nofilter"}

// readOwner splits a comment. Names in it have no blanks.
func readOwner(comment []byte) (owner string, use filterUse) {
	owner = unix.ByteSliceToString(comment)
	for use, word := range filterWords {
		if before, ok := strings.CutSuffix(owner, word); ok && word != "" {
			return before, filterUse(use)
		}
	}
	return owner, filterUnset
}

// A filterPlan has what the table filter of one family lacks, and what the update deletes from it.
type filterPlan struct {
	family   byte
	allowed  []allowedAddr
	released []netip.Addr // whose rules are deleted

	hasForward bool            // FORWARD exists
	isolates   bool            // FORWARD jumps to the reference's policies of bridges
	noJump     bool            // FORWARD does not jump to CNI-FORWARD
	rules      []installedRule // the rules of CNI-FORWARD that were read

	records map[netip.Addr]ruleRecord
	found   map[netip.Addr][]uint64 // handles of the rules of the allowed addresses
	jumps   map[string]uint64       // handles of the jumps to the administrators' chains

	admins  []string        // chains to which CNI-FORWARD does not jump
	missing []acceptRule    // of CNI-FORWARD
	deleted []installedRule // rules to delete

	noTable bool     // the table must be made
	chains  []string // chains to make
}

// An allowedAddr is an address that needs rules, with the administrator's chain.
type allowedAddr struct {
	ip    netip.Addr
	admin string
	had   bool // rules were made for it, in any table
	fresh bool // it was not allowed before, so its rules are not searched
}

// RuleHandles has the handles of the rules in the tables filter by address, each with that of the
// jump to the administrator's chain, as they are recorded. With the handle one rule can be
// requested from the kernel, without it only all rules of the chain.
type RuleHandles map[netip.Addr][]uint64

// A ruleRecord has the arguments of [Tx.Handles].
type ruleRecord struct {
	handles RuleHandles
	anew    bool
}

// Handles passes the recorded handles of an attachment that is allowed or released next, and the addresses that are
// allowed; there may be none. The record is not trusted: if a rule does not have its recorded handle, the whole chain
// is read. After the update the record has the handles of the existing rules.
//
// anew is for an attachment that is new on the host: then the chain is not searched for its rules.
func (x *Tx) Handles(record RuleHandles, anew bool, ips ...netip.Addr) {
	for _, ip := range slices.AppendSeq(slices.Clone(ips), maps.Keys(record)) {
		x.records[ip.Unmap()] = ruleRecord{record, anew}
	}
}

// filters compares the tables filter with what the update allows and releases, or with what CHECK
// expects.
func (x *Tx) filters(check bool) (plans []*filterPlan, err error) {
	for _, family := range []byte{v4, v6} {
		p := &filterPlan{family: family, records: x.records}
		set := allowSet.of(family)
		for _, ch := range x.changes {
			if ch.set != set {
				continue
			}
			ip := addrOf(ch.key, family)
			switch {
			case ch.new != nil && ch.new.filter == filterRules:
				if ch.assigned() {
					had := ch.old != nil && ch.old.filter == filterRules
					p.allow(allowedAddr{ip, adminName(ch.new), had, ch.old == nil && x.records[ip].anew && !check})
				}
			case ch.old != nil && (ch.new == nil || ch.new.filter != ch.old.filter && ch.new.filter == filterNone):
				p.leave(ip)
			}
		}
		for _, ip := range x.old.allowed {
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

// adminName returns the name of the administrator's chain of an element, without our prefix.
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

// chain returns the ID of CNI-FORWARD.
func (p *filterPlan) chain() chainID { return chainID{p.family, filterTable, filterChain} }

// read reads the chains. If FORWARD jumps to CNI-FORWARD, both exist. CNI-FORWARD is dumped only
// where handles do not suffice: 1000 containers have 3000 rules.
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

// readByHandle reads the rules of the addresses by their recorded handles; false: dump the chain,
// since one of the rules is missing, or since the dump takes less time.
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
	handles = slices.Compact(handles) // addresses share the jump
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

// hasJump reports whether the kernel's use count of an administrator's chain is not 0; the count
// includes the chain's own rules. It serves an ADD without a handle of the jump.
func (p *filterPlan) hasJump(s *sock, admin string) (bool, error) {
	_, use, err := s.getChain(chainID{p.family, filterTable, admin})
	if err != nil || use == 0 {
		return false, err
	}
	rules, err := s.rulesOf(p.family, filterTable, admin)
	return use > len(rules), err
}

// isHook reports whether a rule is the jump from FORWARD to CNI-FORWARD.
func isHook(r installedRule) bool { return r.jumps(hookComment, filterChain) }

// compare finds the missing rules of CNI-FORWARD and the rules to delete.
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

// mentions reports whether a rule may contain one of the addresses. Most rules contain none, and
// decoding a rule takes fifty times as long.
func (r *installedRule) mentions(ips []netip.Addr) bool {
	return len(ips) > 10 || slices.ContainsFunc(ips, func(ip netip.Addr) bool { return bytes.Contains(r.exprs, ip.AsSlice()) })
}

// lacks returns what CHECK finds missing, in the syntax of iptables. Addresses without rules need none
// until the host has a FORWARD chain, which may drop their packets.
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

// noteLacking records the owners of addresses that lack what the plan makes.
func (p *filterPlan) noteLacking(x *Tx) {
	if len(p.lacks()) == 0 {
		return
	}
	lacks := map[netip.Addr]bool{}
	for _, m := range p.missing {
		lacks[m.ip] = true
	}
	set := allowSet.of(p.family)
	x.lackedBy(func(ch *change) bool {
		return ch.set == set && (p.noJump || len(p.admins) > 0 || lacks[addrOf(ch.key, p.family)])
	})
}

// prepare completes the plan of an update. If FORWARD does not jump to CNI-FORWARD, all addresses
// get their rules, not only those of this update. This includes addresses of a version that made no
// rules where there was no FORWARD.
func (p *filterPlan) prepare(x *Tx) error {
	if len(p.allowed) == 0 {
		return nil
	}
	if p.noJump {
		set := allowSet.of(p.family)
		err := x.s.elements(set, nil, func(e Element) {
			ch := x.found(e)
			if ch.new != nil && ch.new.filter != filterNone && CheckChainName(adminName(ch.new)) == nil {
				p.allow(allowedAddr{ip: addrOf(ch.key, p.family), admin: adminName(ch.new)})
			}
		})
		if err != nil {
			return err
		}
		p.compare()
	}
	p.noTable = !p.hasForward && !x.hasTable(p.family, filterTable)
	return p.findChains(x.s)
}

// findChains finds the chains to make. Adding a chain that exists changes nothing, but the kernel
// takes 10 ms until no packet can use the old one. A chain with rules, or with jumps to it, exists.
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

// change adds the missing rules and deletes those of released addresses. Jumps become the first
// rules of their chains, as in the reference.
func (p *filterPlan) change(b *batch) {
	tbl := tableOf(p.family, filterTable)
	gone := leftovers{rules: p.deleted}
	gone.remove(b)
	if len(p.allowed) == 0 {
		return
	}
	p.makeTable(b)
	for _, name := range p.chains {
		b.Add(step{What: "chain " + name + " of " + p.table()}).AddChain(&nftables.Chain{Table: tbl, Name: name})
	}
	for _, name := range p.admins {
		s := p.ruleOf(filterChain)
		s.Made = func(handle uint64) { p.jumps[name] = handle }
		b.Add(s).InsertRule(newRule(p.family, filterTable, filterChain, commentedJump(adminComment, name)))
	}
	if p.noJump {
		b.Add(p.ruleOf(filterHook)).InsertRule(newRule(p.family, filterTable, filterHook, commentedJump(hookComment, filterChain)))
	}
	for _, m := range p.missing {
		s := p.ruleOf(filterChain)
		s.Made = func(handle uint64) { p.found[m.ip] = append(p.found[m.ip], handle) }
		b.Add(s).AddRule(newRule(p.family, filterTable, filterChain, m.rule()))
	}
}

// updateRecords updates the recorded handles after the batch.
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

// makeTable creates a missing table and FORWARD as iptables-nft does. If FORWARD appears meanwhile,
// the batch fails (EEXIST); otherwise the batch would set its policy to accept.
func (p *filterPlan) makeTable(b *batch) {
	tbl := tableOf(p.family, filterTable)
	if p.noTable {
		b.Add(step{What: p.table(), Flags: netlink.Excl}).AddTable(tbl)
	}
	if p.hasForward {
		return
	}
	b.Add(step{What: "chain " + filterHook + " of " + p.table(), Flags: netlink.Excl}).AddChain(&nftables.Chain{
		Table: tbl, Name: filterHook, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: new(nftables.ChainPolicyAccept),
	})
}

// ruleOf returns the step that adds a rule.
func (p *filterPlan) ruleOf(chain string) step {
	return step{What: "rule of chain " + chain + " of " + p.table(), Needs: filterNeeds}
}

// table formats the table's name for errors.
func (p *filterPlan) table() string {
	if p.family == v6 {
		return "table ip6 " + filterTable
	}
	return "table ip " + filterTable
}
