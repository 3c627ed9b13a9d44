package nft

import (
	"context"
	"maps"
	"strings"
)

// Prune deletes the tables that updates of this Table have made, unless they contain an element or
// an administrator's chain. It serves the undo of an ADD. A table that existed before stays: it
// guards 127.0.0.0/8 even without elements. After a DEL all tables stay, since the next ADD would
// make them again.
func (t *Table) Prune(ctx context.Context) error {
	t.mu.Lock()
	made := maps.Clone(t.made)
	t.mu.Unlock()
	if len(made) == 0 {
		return nil
	}
	s, done, err := t.locked(ctx)
	if err != nil {
		return err
	}
	defer done()
	return prune(s, made)
}

// prune reads each of our sets, then deletes the empty tables in one batch.
func prune(s *sock, made map[byte]bool) error {
	x := newTx(s)
	used := map[byte]bool{}
	for _, ch := range x.owned(nil, func([]byte) bool { return true }) {
		used[ch.set.table] = true
	}
	chains, err := s.chainsIn(inet, TableName)
	if err != nil {
		return err
	}
	for _, c := range chains {
		used[inet] = used[inet] || strings.HasPrefix(c.name, adminPrefix)
	}
	if x.err != nil {
		return x.err
	}
	b := &batch{}
	for _, table := range []byte{inet, bridge} {
		if made[table] && !used[table] && x.hasOurs(table) {
			b.Add(step{What: "table " + tableText(table)}).DelTable(ours(table))
		}
	}
	return s.commit(b)
}
