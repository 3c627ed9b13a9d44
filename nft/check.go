package nft

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A MissingError says what an attachment should have in the rule set and has not.
type MissingError struct{ What []string }

// mostMissing is how many missing things an error names.
const mostMissing = 50

// Error lists what is missing in the order in which it was asked for, elements in
// the words of [Element], chains by name.
func (e *MissingError) Error() string {
	text := "rule set: missing: " + strings.Join(e.What[:min(len(e.What), mostMissing)], ", ")
	if more := len(e.What) - mostMissing; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Check is [Table.Update] for CHECK: fn says what shall be there, as for ADD,
// and nothing is changed. The error is a *[MissingError] if elements are
// missing, belong to others or lead elsewhere, or if the fixed chains that
// they need are not as they were made. It takes no lock.
func (t *Table) Check(fn func(*Tx) error) error {
	s, err := dial(t.ns)
	if err != nil {
		return err
	}
	defer s.close()
	x := newTx(s)
	var missing []string
	used := map[byte]bool{}
	x.full = func() error {
		for _, sl := range x.slots {
			used[sl.set.table] = used[sl.set.table] || sl.is != nil
			if sl.lacks() {
				missing = append(missing, sl.set.describe(sl.is))
			}
		}
		return nil
	}
	if err := fn(x); err != nil {
		return err
	}
	if err := cmp.Or(x.err, x.full()); err != nil {
		return err
	}
	for _, table := range []byte{inet, bridge} {
		if !used[table] {
			continue
		}
		chains := chainsOf(table)
		if table == inet {
			chains = append(chains, x.planned()...)
		}
		damaged, err := s.damaged(table, chains)
		if err != nil {
			return err
		}
		if missing = append(missing, damaged...); len(damaged) > 0 {
			missing[len(missing)-1] += s.remedy(table)
		}
	}
	filters, err := x.filters(true)
	if err != nil {
		return err
	}
	for _, f := range filters {
		missing = append(missing, f.lacks()...)
	}
	if len(missing) > 0 {
		return &MissingError{missing}
	}
	return nil
}

// lacks reports whether an element is missing, or not what it should be. Whether there are
// rules in the tables filter as well is for [Tx.filters] to say.
func (sl *slot) lacks() bool {
	if sl.is == nil || sl.was == nil {
		return sl.is != nil
	}
	is := *sl.is
	is.filter = sl.was.filter
	return !sl.was.equal(&is)
}

// remedy says how damaged chains are mended. Those of a table that somebody flushed the next
// ADD finds without help.
func (s *sock) remedy(table byte) string {
	if _, rules, _ := s.chainAt(chainID{table, TableName, mark(table)}); rules == 0 {
		return " (the next ADD makes all rules anew)"
	}
	return fmt.Sprintf(" (`nft flush chain %s %s` lets the next ADD make all rules anew)", tableText(table), mark(table))
}

// planned returns the chains that elements of this update jump to, with the rules
// that they should have. One that is not there has no element either, which is told.
func (x *Tx) planned() (chains []chain) {
	for _, name := range x.chainNames() {
		if p := x.chains[name]; !p.missing && !strings.HasPrefix(name, adminPrefix) { // whose rules are not ours
			chains = append(chains, p.chain)
		}
	}
	return chains
}

// damaged names the chains whose rules are not ours, or no longer all of
// ours, by their shape: the kernel does not give back the very bytes it got.
// Those of another version are not compared: they serve running containers until
// the next ADD makes ours.
func (s *sock) damaged(table byte, chains []chain) (names []string, err error) {
	rules, err := s.rulesOf(table, TableName, "")
	if err != nil {
		return nil, err
	}
	have := map[string][]byte{}
	for _, r := range rules {
		have[r.chain] = shape(have[r.chain], r.exprs)
	}
	if have[mark(table)] == nil && madeByAnother(have) {
		return nil, nil
	}
	for _, c := range chains {
		var want []byte
		for _, r := range c.rules {
			want = shape(want, r.list())
		}
		if !bytes.Equal(have[c.name], want) {
			names = append(names, fmt.Sprintf("rules of chain %s of table %s", c.name, tableText(table)))
		}
	}
	return names, nil
}

// madeByAnother reports whether the base ruleset of another version is there: its mark is,
// with the rule that goes when the table is flushed.
func madeByAnother(have map[string][]byte) bool {
	for name := range have {
		if strings.HasPrefix(name, markPrefix) {
			return true
		}
	}
	return false
}

// shape appends to all by what a rule is told apart here: the names of its
// expressions, and of the sets and chains that they lead to. That shows a rule
// that was deleted, added or exchanged, though not another operand, and takes a
// hundredth of the time of reading those. Names come with a zero byte.
func shape(all, exprs []byte) []byte {
	for _, v := range attributes(exprs) {
		name, data := attribute(v, unix.NFTA_EXPR_NAME), attribute(v, unix.NFTA_EXPR_DATA)
		all = append(all, name...)
		switch string(name) {
		case "lookup\x00":
			all = append(all, attribute(data, unix.NFTA_LOOKUP_SET)...)
		case "immediate\x00":
			verdict := attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
			all = append(all, attribute(verdict, unix.NFTA_VERDICT_CHAIN)...)
		}
	}
	return append(all, ';')
}
