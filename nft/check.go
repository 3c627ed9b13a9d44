package nft

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/internal/session"
)

// A MissingError lists what an attachment should have in the rule set and does not have.
type MissingError struct {
	What []string
	Base bool // a base ruleset is among it: another program has deleted all rules
}

// mostMissing is the largest number of missing things that an error names.
const mostMissing = 50

// Error lists what is missing in the order of the check, elements as [Element] formats them, chains
// by name.
func (e *MissingError) Error() string {
	text := "rule set: missing: " + strings.Join(e.What[:min(len(e.What), mostMissing)], ", ")
	if more := len(e.What) - mostMissing; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Check is [Table.Update] for CHECK: fn describes the state that must exist, as for ADD, and Check
// changes nothing. The error is a *[MissingError] if elements are missing, belong to other
// attachments or lead elsewhere, or if there is no base ruleset. A base ruleset of another version
// is valid: it serves running containers until the next ADD replaces it. Check takes no lock. In a
// session for many attachments it reads once what these have in common.
func (t *Table) Check(fn func(*Tx) error) error {
	s, err := t.dial()
	if err != nil {
		return err
	}
	defer s.Close()
	x := newTx(s)
	x.session = t.session
	if err := cmp.Or(fn(x), x.err); err != nil {
		return err
	}
	var missing MissingError
	used := map[byte]bool{}
	for _, ch := range x.changes {
		used[ch.set.table] = used[ch.set.table] || ch.new != nil
		if ch.lacks() {
			missing.What = append(missing.What, ch.new.String())
		}
	}
	for _, table := range []byte{inet, bridge} {
		if !used[table] {
			continue
		}
		version, err := session.Ask(t.session, versionOf(table), func() (string, error) { return s.version(table) })
		if err != nil {
			return err
		}
		if version == "" {
			missing.Base = true
			missing.What = append(missing.What, "base ruleset of table "+tableText(table)+" (the next ADD makes all rules anew)")
		}
	}
	filters, err := x.filters(true)
	if err != nil {
		return err
	}
	for _, f := range filters {
		missing.What = append(missing.What, f.lacks()...)
	}
	if len(missing.What) > 0 {
		return &missing
	}
	return nil
}

// versionOf is the key of the version of a table's base ruleset.
type versionOf byte

// lacks reports whether an element is missing or differs. [Tx.filters] checks the rules in the
// tables filter.
//
// An address that several attachments have, as on two networks of the same subnet, is that of the last ADD. The others
// lack nothing until its DEL.
func (ch *change) lacks() bool {
	if ch.new == nil || ch.old == nil {
		return ch.new != nil
	}
	if key := ch.old.OwnerKey(); ch.set.isAddresses() && key != "" && key != ch.new.OwnerKey() {
		return false
	}
	want := *ch.new
	want.filter = ch.old.filter
	return !ch.old.equal(&want)
}
