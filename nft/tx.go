package nft

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// A Tx is a transaction: the changes of one update. Nothing is sent to the kernel before the
// function given to [Table.Update] has returned; the Tx reads under the lock. An error while
// reading is kept and fails the update.
type Tx struct {
	s       *sock
	err     error
	changes []*change
	index   map[elementID]*change
	chains  map[string]*jumpedChain // all in the inet table
	tables  map[chainID]bool        // all of the namespace, without the name of a chain; nil: not listed yet
	asked   map[*set]*askedSet
	owners  map[spec.Attachment]string // their comments
	records map[netip.Addr]ruleRecord  // of the rules in the tables filter, see Handles
	old     leftovers                  // of the reference plugins
	joint   *joint                     // of an update at the end of a session; nil: of another
	session *session.Session           // of Check; nil: none, or of an update
}

// An elementID names an element.
type elementID struct {
	set *set
	key string
}

// A change has the current element of a key in a set and the planned one; nil is none. They are the
// same for an element that was only read. [Tx.assign] alone changes what is planned.
type change struct {
	set      *set
	key      []byte
	old, new *Element
}

// assigned reports whether this update has planned the element.
func (ch *change) assigned() bool { return ch.new != nil && ch.new != ch.old }

// A jumpedChain is a chain to which elements of this update jump. It is missing if the kernel had none,
// and created if the batch creates it.
type jumpedChain struct {
	chain   chain
	missing bool
	created bool
}

// newTx begins an update that reads through s, which must stay open as long as the Tx is used.
func newTx(s *sock) *Tx {
	return &Tx{
		s: s, index: map[elementID]*change{}, chains: map[string]*jumpedChain{}, asked: map[*set]*askedSet{}, owners: map[spec.Attachment]string{},
		records: map[netip.Addr]ruleRecord{},
	}
}

// fail keeps the first error.
func (x *Tx) fail(err error) {
	if x.err == nil {
		x.err = err
	}
}

// change returns the change of a key; the first call reads the key from the kernel. If that fails,
// the change has no element, and the update will fail.
func (x *Tx) change(set *set, key []byte) *change {
	x.releaseTogether()
	if ch := x.index[elementID{set, string(key)}]; ch != nil {
		return ch
	}
	e, err := x.read(set, key)
	if err != nil {
		x.fail(err)
	}
	return x.newChange(elementID{set, string(key)}, key, e)
}

// newChange adds an unchanged element to the index.
func (x *Tx) newChange(p elementID, key []byte, old *Element) *change {
	ch := &change{set: p.set, key: key, old: old, new: old}
	x.index[p] = ch
	x.changes = append(x.changes, ch)
	return ch
}

// found returns the change of an element from a dump.
func (x *Tx) found(e Element) *change {
	p := elementID{e.set, string(e.key)}
	if ch := x.index[p]; ch != nil {
		return ch
	}
	return x.newChange(p, e.key, &e)
}

// isAbsent reports whether the key is known to have no element, neither in the kernel nor from
// this update. Then it needs no change.
func (x *Tx) isAbsent(set *set, key []byte) bool {
	k := x.asked[set]
	dumped := k != nil && k.elements != nil
	return dumped && k.elements[string(key)] == nil && x.index[elementID{set, string(key)}] == nil
}

// put is store for o.
func (x *Tx) put(o spec.Attachment, e Element) {
	e.comment = x.comment(o)
	if word := filterWords[e.filter]; word != "" {
		e.comment = commentWithin(o, longest-len(word))
	}
	x.store(e)
}

// Put puts an element from [Table.Elements] unchanged, with its owner and its chain.
func (x *Tx) Put(e Element) {
	if e.chain != "" {
		c := x.chainNamed(e.chain)
		c.name = e.chain
		x.ensureChain(c)
	}
	x.store(e)
}

// store puts an element and replaces any element with the same key. The caller checks that it may
// be replaced.
func (x *Tx) store(e Element) {
	x.assign(x.change(e.set, e.key), &e)
}

// assign makes e the planned element of a key; nil: the key will have none.
func (x *Tx) assign(ch *change, e *Element) {
	ch.new = e
	if x.joint != nil && ch.lacks() {
		x.joint.lacked[e.OwnerKey()] = true
	}
}

// comment returns the comment of the owner's elements. It is cached, since there may be thousands
// of elements.
func (x *Tx) comment(o spec.Attachment) string {
	c, ok := x.owners[o]
	if !ok {
		c = comment(o)
		x.owners[o] = c
	}
	return c
}

// key returns the attachment's key, from the cached comment.
func (x *Tx) key(o spec.Attachment) string { return ownerKey(x.comment(o)) }

// owned returns the changes of the kinds whose planned elements the filter selects. It dumps all
// sets of these kinds, except for those in missing tables.
func (x *Tx) owned(kinds []Kind, want filter) (owned []*change) {
	for _, set := range sets() {
		if !hasKind(kinds, set.kind) || !x.hasOurs(set.table) {
			continue
		}
		if err := x.s.elements(set, want, func(e Element) { x.found(e) }); err != nil {
			x.fail(err)
		}
	}
	for _, ch := range x.changes {
		if hasKind(kinds, ch.set.kind) && ch.wanted(want) {
			owned = append(owned, ch)
		}
	}
	return owned
}

// drop empties the changes that owned returns.
func (x *Tx) drop(kinds []Kind, want filter) {
	for _, ch := range x.owned(kinds, want) {
		x.assign(ch, nil)
	}
}

// hasTable reports whether a table exists. The first call lists all tables.
func (x *Tx) hasTable(family byte, name string) bool {
	if x.tables == nil {
		x.tables = map[chainID]bool{}
		tables, err := x.s.tables()
		if err != nil {
			x.fail(err)
		}
		for _, t := range tables {
			x.tables[t] = true
		}
	}
	return x.tables[chainID{family: family, table: name}]
}

// hasOurs reports whether our table of a family exists.
func (x *Tx) hasOurs(family byte) bool { return x.hasTable(family, TableName) }

// wanted reports whether the filter selects the planned element.
func (ch *change) wanted(want filter) bool {
	return ch.new != nil && len(ch.new.comment) >= keyLen && want([]byte(ch.new.comment))
}

// ownedBy selects what one attachment owns, by the key, since names may be cut short.
func ownedBy(o spec.Attachment) filter {
	key := o.Key()
	return func(c []byte) bool { return string(c[:keyLen]) == key }
}

// hasKind reports whether the list has a kind; an empty list has all.
func hasKind(kinds []Kind, k Kind) bool {
	return len(kinds) == 0 || slices.Contains(kinds, k)
}

// Release drops what o owns of the given kinds, and what the reference plugins made for it; no
// kinds mean all. Elements that belong to another attachment now stay. It is not an error if there
// is nothing. It reads all sets of the kinds; see [Tx.ReleaseKnown].
func (x *Tx) Release(o spec.Attachment, kinds ...Kind) {
	if !x.releaseLater(o, kinds) {
		x.drop(kinds, ownedBy(o))
	}
	x.releaseOld(o, kinds)
}

// AlreadyOwned reports whether o had, before this update, any element that the update has given it
// so far.
func (x *Tx) AlreadyOwned(o spec.Attachment) bool {
	key := x.key(o)
	return slices.ContainsFunc(x.changes, func(ch *change) bool {
		return ch.assigned() && ch.old != nil && ch.old.OwnerKey() == key
	})
}

// DeleteStale drops what attachments of the network own of the given kinds, except
// for those whose key is valid; no kinds mean all.
func (x *Tx) DeleteStale(network string, valid func(key string) bool, kinds ...Kind) {
	x.drop(kinds, staleOf(network, valid))
}

// staleOf selects what attachments of the network own whose keys are not valid.
func staleOf(network string, valid func(key string) bool) filter {
	begin := []byte(spec.NetworkKey(network)) // skips the other networks' elements
	return func(c []byte) bool {
		return bytes.HasPrefix(c, begin) && spec.LabelOf(unix.ByteSliceToString(c), network) && !valid(string(c[:keyLen]))
	}
}

// ensureChain plans the chain to which an element jumps and returns its name. Equal names mean
// equal rules, so each chain is planned once.
func (x *Tx) ensureChain(c chain) string {
	if x.chains[c.name] != nil {
		return c.name
	}
	ok, err := x.hasChain(c.name)
	if err != nil {
		x.fail(err)
	}
	x.chains[c.name] = &jumpedChain{chain: c, missing: !ok}
	return c.name
}

// hasChain reports whether our table has a chain, which CHECKs of many attachments read once.
func (x *Tx) hasChain(name string) (ok bool, err error) {
	return session.Ask(x.session, chainOf(name), func() (bool, error) {
		ok, _, err := x.s.getChain(chainID{inet, TableName, name})
		return ok, err
	})
}

// chainOf is the key of whether there is a chain.
type chainOf string

// chainNames returns the names of the planned chains in order, so that equal updates produce equal
// batches.
func (x *Tx) chainNames() []string {
	names := make([]string, 0, len(x.chains))
	for name := range x.chains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// batch turns the plan into messages. An object is created before it is named, and dropped only
// after nothing refers to it. An update that changes nothing gives an empty batch. It returns the
// first error of reading.
func (x *Tx) batch() (b *batch, err error) {
	b = &batch{}
	x.dropEmptyBridges()
	if x.err != nil {
		return nil, x.err
	}
	b.filters, err = x.filters(false)
	if err != nil {
		return nil, err
	}
	for _, f := range b.filters {
		if x.joint != nil {
			f.noteLacking(x)
		}
		if err := f.prepare(x); err != nil {
			return nil, err
		}
	}
	if err := x.ownTables(b); err != nil {
		return nil, err
	}
	x.old.remove(b)
	for _, f := range b.filters {
		f.change(b)
	}
	return b, nil
}

// ownTables adds the messages for our tables to the batch.
func (x *Tx) ownTables(b *batch) error {
	if err := x.bases(b); err != nil {
		return err
	}
	x.newChains(b)
	for _, set := range sets() {
		x.elements(b, set)
	}
	return x.unusedChains(b)
}

// bases ensures the base rulesets. A table that is missing, or was flushed, is created if it gets
// elements; a table of another version is upgraded by the first update that changes any element.
func (x *Tx) bases(b *batch) error {
	if len(x.changes) == 0 {
		return nil
	}
	for _, table := range []byte{inet, bridge} {
		if x.tables != nil && !x.hasOurs(table) && !x.usesTable(table) {
			continue
		}
		version, err := x.s.version(table)
		if err != nil {
			return err
		}
		if version == baseVersion && !x.rebuilds() || version == "" && !x.usesTable(table) {
			continue
		}
		if version == "" && x.joint != nil {
			x.lackedBy(func(ch *change) bool { return ch.set.table == table })
		}
		if err := x.base(b, table); err != nil {
			return err
		}
	}
	return x.err
}

// base creates the base ruleset of a table. On an upgrade from another version, elements keep their
// verdicts to chains of the same names, which are refilled. A release that stops using a chain or a
// set deletes it here.
func (x *Tx) base(b *batch, table byte) error {
	if !x.hasOurs(table) {
		b.newTables = append(b.newTables, table)
	}
	chains, err := x.s.chainsIn(table, TableName)
	if err != nil {
		return err
	}
	if x.joint != nil {
		if err := x.noteFlushed(table, chains); err != nil {
			return err
		}
	}
	b.ensure(table)
	for _, c := range chains {
		if want := x.chainNamed(c.name); table == inet && want.rules != nil {
			b.fill(table, &want)
		}
	}
	return x.retire(b, table)
}

// retire deletes the sets of earlier versions. No rule reads their elements.
func (x *Tx) retire(b *batch, table byte) error {
	if !x.hasOurs(table) {
		return nil
	}
	names, err := x.s.setsIn(table, TableName)
	for _, name := range names {
		if slices.Contains(retiredSets, name) {
			b.Add(step{What: "set " + name}).DelSet(&nftables.Set{Table: ours(table), Name: name})
		}
	}
	return err
}

// chainNamed returns the expected chain of a name to which elements jump: a planned one, or one
// whose rules follow from its name. Any other chain has no rules.
func (x *Tx) chainNamed(name string) chain {
	if p := x.chains[name]; p != nil {
		return p.chain
	}
	kind, text, _ := strings.Cut(strings.ReplaceAll(name, "_", ":"), "-")
	p, err := netip.ParsePrefix(strings.Replace(text, "-", "/", 1))
	switch {
	case err != nil:
	case kind == "out":
		return outChain(p)
	case kind == "hairpin":
		return hairpinChain(p)
	}
	return chain{}
}

// usesTable reports whether this update puts elements into sets of the table.
func (x *Tx) usesTable(table byte) bool {
	for _, ch := range x.changes {
		if ch.set.table == table && ch.new != nil {
			return true
		}
	}
	return false
}

// adds reports whether the kernel must get a new element; to change a verdict or data, the element
// is dropped and added.
func (ch *change) adds() bool {
	return ch.new != nil && (ch.old == nil || !ch.old.equal(ch.new))
}

// drops reports whether the kernel's element must be deleted.
func (ch *change) drops() bool {
	return ch.old != nil && (ch.new == nil || !ch.old.equal(ch.new))
}

// newChains creates the missing chains to which elements jump: a later step of the same update may
// have dropped the element again.
func (x *Tx) newChains(b *batch) {
	for _, name := range x.chainNames() {
		p := x.chains[name]
		if !p.missing || x.refs(name) <= 0 {
			continue
		}
		p.created = true
		b.addChain(inet, &p.chain)
		b.fill(inet, &p.chain)
	}
}

// refs returns how many more elements will jump to the chain than do now; negative if there will be
// fewer.
func (x *Tx) refs(name string) (n int) {
	for _, ch := range x.changes {
		if ch.adds() && ch.new.chain == name {
			n++
		}
		if ch.drops() && ch.old.chain == name {
			n--
		}
	}
	return n
}

// elements first deletes elements of a set, then adds new ones: the kernel cannot change the data
// of a key, and rejects an existing key.
func (x *Tx) elements(b *batch, set *set) {
	var out, add []*Element
	for _, ch := range x.changes {
		if ch.set != set {
			continue
		}
		if ch.drops() {
			out = append(out, ch.old)
		}
		if ch.adds() {
			add = append(add, ch.new)
		}
	}
	what := step{What: "elements of " + set.name}
	part := make([]nftables.SetElement, 0, min(listsPerMsg, max(len(out), len(add))))
	for list := range slices.Chunk(out, listsPerMsg) {
		part = part[:0]
		for _, e := range list {
			part = append(part, nftables.SetElement{Key: e.key})
		}
		b.Fail(b.Add(what).SetDeleteElements(set.ref(), part))
	}
	if set.kind != KindPortMap || !set.verdicts() { // several host ports may have the same port of a container
		what.Flags = netlink.Excl
	}
	for list := range slices.Chunk(add, listsPerMsg) {
		part = part[:0]
		for _, e := range list {
			part = append(part, e.lib())
		}
		b.Fail(b.Add(what).SetAddElements(set.ref(), part))
	}
}

// unusedChains drops the chains to which no element jumps any more. The kernel counts rules and
// jumps in one number, so the number of rules is subtracted. A jump of another program keeps the
// chain, and so do the rules in an administrator's chain.
func (x *Tx) unusedChains(b *batch) error {
	seen := map[string]bool{masqAll: true} // a fixed chain
	for _, ch := range x.changes {
		if !ch.drops() || ch.old.chain == "" || seen[ch.old.chain] {
			continue
		}
		name := ch.old.chain
		seen[name] = true
		if p := x.chains[name]; p != nil && p.created {
			continue
		}
		_, use, err := x.s.getChain(chainID{inet, TableName, name})
		if err != nil {
			return err
		}
		rules, err := x.s.rulesOf(inet, TableName, name)
		if err != nil {
			return err
		}
		if kept := strings.HasPrefix(name, adminPrefix) && len(rules) > 0; !kept && use-len(rules)+x.refs(name) == 0 {
			b.dropChain(inet, name)
		}
	}
	return nil
}
