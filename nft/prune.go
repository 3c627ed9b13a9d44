package nft

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// Prune deletes those of our tables in which nothing belongs to anybody. An
// ADD that failed on a host without cnibox's tables leaves none behind so; after
// a DEL they stay, since the next ADD would make them again. Tables of others
// stay, and so does ours while there is a chain of the administrator's.
func (t *Table) Prune(ctx context.Context) error { return t.locked(ctx, prune) }

// prune looks at every set of ours, then deletes the tables in one batch.
func prune(s *sock) error {
	x := newTx(s)
	used := map[byte]bool{}
	for _, sl := range x.owned(nil, func([]byte) bool { return true }) {
		used[sl.set.table] = true
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
		if !used[table] && x.leftovers().tables[chainID{family: table, table: TableName}] {
			b.add(step{"table " + tableText(table), noNeeds}, unix.NFT_MSG_DELTABLE, 0, table, func(b *netlink.Buf) {
				b.Text(unix.NFTA_TABLE_NAME, TableName)
			})
		}
	}
	return s.commit(b)
}
