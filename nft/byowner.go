package nft

import (
	"bytes"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// The elements of an attachment are found without dumping the sets, which have those of all
// attachments. A map of each kind has an entry for each element: its key is a name for the
// attachment and a number from 0 on, its data are the element's set and key. An entry may refer to
// an element that is deleted, or that belongs to another attachment now; no entry is missing if the
// base ruleset is of this version.
//
// GET of an element needs its key, which DEL does not know, because runtimes omit the port
// mappings. A dump returns the ports of all attachments, so the cost of each DEL would grow with
// their number.

const (
	mostEntries = 32     // of an owner and a kind; of an owner with more, the sets are dumped
	manyEntries = "many" // replaces a set's name: there are more elements
	entryKeyLen = 32     // the longest key in an entry
)

// A listing has the elements of one kind that an update puts for one owner and that have no entries
// yet.
type listing struct {
	set     *set
	comment string
	fresh   bool // the owner had nothing of the kind, so its entries are not requested
	many    bool
	put     []elementID
}

type listingID struct {
	set *set
	key string // of the owner
}

// byOwner returns the map with the entries of a kind.
func byOwner(kind Kind) *set {
	for _, set := range byOwnerSets {
		if set.kind == kind {
			return set
		}
	}
	return nil
}

// isByOwner reports whether the set is one of these maps.
func (s *set) isByOwner() bool { return s.data == entryType }

// list records an element for its owner's entries. had: the owner has the element already.
func (x *Tx) list(e *Element, had bool) {
	id := listingID{byOwner(e.set.kind), e.OwnerKey()}
	l := x.listings[id]
	if l == nil {
		l = &listing{set: id.set, comment: e.comment, fresh: !x.retry}
		x.listings[id] = l
		x.listingOrder = append(x.listingOrder, l)
	}
	l.fresh = l.fresh && !had
	if l.many {
		return
	}
	if id := (elementID{e.set, string(e.key)}); !slices.Contains(l.put, id) {
		l.put = append(l.put, id)
		l.many = len(l.put) > mostEntries
	}
}

// listAll records all elements of a table whose base ruleset has no entries.
func (x *Tx) listAll(table byte) error {
	for _, set := range sets() {
		if set.table != table || set.isByOwner() {
			continue
		}
		err := x.s.elements(set, nil, func(e Element) {
			now := &e
			if ch := x.index[elementID{set, string(e.key)}]; ch != nil {
				now = ch.new // another owner may have taken it over
			}
			if now != nil && now.OwnerKey() != "" {
				x.list(now, true)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// planEntries plans the entries of the recorded elements.
func (x *Tx) planEntries() {
	for _, l := range x.listingOrder {
		if l.many {
			x.entry(l, 0).new = l.entry(keyOf(ifname(manyEntries), make([]byte, entryKeyLen)), l.key(0))
			continue
		}
		for _, e := range l.put {
			if ch := x.index[e]; ch == nil || ch.new != nil && ch.new.OwnerKey() == ownerKey(l.comment) {
				x.planEntry(l, entryData(e))
			}
		}
	}
}

// planEntry plans one entry, under the first free number.
func (x *Tx) planEntry(l *listing, data []byte) {
	for n := 0; x.err == nil; n++ {
		ch := x.entry(l, n)
		switch {
		case ch.new == nil:
			ch.new = l.entry(data, ch.key)
			return
		case n == 0 && isMany(ch.new), bytes.Equal(ch.new.data, data):
			return
		}
	}
}

// entry returns the change of an entry. The first ADD of an attachment does not read the entry: if
// it exists, the kernel rejects the batch (EEXIST), and the next try reads it.
func (x *Tx) entry(l *listing, n int) *change {
	key := l.key(n)
	id := elementID{l.set, string(key)}
	if x.index[id] == nil && l.fresh {
		return x.newChange(id, key, nil)
	}
	return x.change(l.set, key)
}

// key returns the key of the entry with number n.
func (l *listing) key(n int) []byte { return entryKey(ownerKey(l.comment), n) }

// entry returns an entry as an element.
func (l *listing) entry(data, key []byte) *Element {
	return &Element{set: l.set, key: key, data: data, comment: l.comment}
}

// entryKey returns the key of an owner's entry with a number.
func entryKey(owner string, n int) []byte {
	return keyOf(memberOf(owner), ifname(strconv.Itoa(n)))
}

// entryData returns the data of the entry of an element.
func entryData(e elementID) []byte {
	key := make([]byte, entryKeyLen)
	copy(key, e.key)
	return keyOf(ifname(e.set.name), key)
}

// isMany reports whether the entry says that its owner has more elements than entries.
func isMany(e *Element) bool { return entrySet(e) == manyEntries }

// entrySet returns the name of the set in an entry.
func entrySet(e *Element) string {
	return unix.ByteSliceToString(e.data[:min(ifnameLen, len(e.data))])
}

// entryElement returns the element that an entry names; false if the set is not of this version.
func entryElement(e *Element) (id elementID, ok bool) {
	name := entrySet(e)
	for _, set := range sets() {
		if n := set.keyLen(); set.name == name && len(e.data) >= ifnameLen+n {
			return elementID{set, string(e.data[ifnameLen : ifnameLen+n])}, true
		}
	}
	return id, false
}

// keyLen returns the length of the set's keys in bytes.
func (s *set) keyLen() int { return int(datatype(s.key).Bytes) }

// listedOf returns the elements of o that its entries name, and the entries, of the kinds whose
// entries are complete; no kinds mean all. rest has the other kinds.
func (x *Tx) listedOf(o spec.Attachment, kinds []Kind) (owned, entries []*change, rest []Kind) {
	for _, set := range byOwnerSets {
		if !hasKind(kinds, set.kind) || !x.leftovers().tables[chainID{family: set.table, table: TableName}] {
			continue
		}
		elements, listed, ok := x.listedIn(o, set)
		if !ok {
			rest = append(rest, set.kind)
			continue
		}
		owned, entries = append(owned, elements...), append(entries, listed...)
	}
	return owned, entries, rest
}

// listedIn is listedOf for one kind; false if its entries do not name all.
func (x *Tx) listedIn(o spec.Attachment, set *set) (owned, entries []*change, ok bool) {
	if version, err := x.version(set.table); err != nil || version != baseVersion {
		return nil, nil, false // the dump of the sets returns the same error
	}
	isOwned := func(ch *change) bool { return ch.wanted(ownedBy(o)) }
	for n := 0; ; n++ {
		entry := x.change(set, entryKey(x.key(o), n))
		if entry.new == nil {
			return owned, entries, true
		}
		id, ok := entryElement(entry.new)
		if !ok {
			return nil, nil, false
		}
		entries = append(entries, entry)
		ch := x.change(id.set, []byte(id.key))
		if first := nextOf(id.set); !isOwned(ch) && first != nil { // o may have become the owner
			ch = x.change(first, []byte(id.key[ifnameLen:]))
		}
		if isOwned(ch) && !slices.Contains(owned, ch) {
			owned = append(owned, ch)
		}
	}
}

// release drops what o owns of the kinds.
func (x *Tx) release(o spec.Attachment, kinds []Kind) {
	owned, entries, rest := x.listedOf(o, kinds)
	for _, ch := range append(owned, entries...) {
		ch.new, ch.put = nil, false
	}
	for _, ch := range x.changes { // elements that this update has put
		if hasKind(kinds, ch.set.kind) && ch.wanted(ownedBy(o)) {
			ch.new, ch.put = nil, false
		}
	}
	if len(rest) > 0 {
		x.drop(rest, ownedBy(o))
	}
}

// ownedOf returns what o owns of the kinds, in the order of the sets.
func (x *Tx) ownedOf(o spec.Attachment, kinds []Kind) []*change {
	owned, _, rest := x.listedOf(o, kinds)
	if len(rest) > 0 {
		owned = append(owned, x.owned(rest, ownedBy(o))...)
	}
	order := sets()
	slices.SortStableFunc(owned, func(a, b *change) int { return slices.Index(order, a.set) - slices.Index(order, b.set) })
	return owned
}

// version returns the version of a table's base ruleset, read once.
func (x *Tx) version(table byte) (string, error) {
	if v, ok := x.versions[table]; ok {
		return v, nil
	}
	v, err := x.s.version(table)
	if err == nil {
		x.versions[table] = v
	}
	return v, err
}
