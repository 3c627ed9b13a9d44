package nft

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// A MissingError says what an attachment should have in the rule set and has not.
type MissingError struct{ What []string }

func (e *MissingError) Error() string {
	return "rule set: missing: " + strings.Join(e.What, ", ")
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
	if err := fn(x); err != nil {
		return err
	}
	if x.err != nil {
		return x.err
	}
	var missing []string
	used := map[byte]bool{}
	for _, sl := range x.slots {
		used[sl.set.table] = used[sl.set.table] || sl.is != nil
		if sl.adds() {
			missing = append(missing, sl.set.describe(sl.is))
		}
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
		missing = append(missing, damaged...)
	}
	if len(missing) > 0 {
		return &MissingError{missing}
	}
	return nil
}

// planned returns the chains that elements of this update jump to.
func (x *Tx) planned() (chains []chain) {
	for _, name := range x.chainNames() {
		chains = append(chains, x.chains[name].chain)
	}
	return chains
}

// damaged names the chains whose rules are not ours, or no longer all of
// ours, by their shape: the kernel does not give back the very bytes it got.
func (s *sock) damaged(table byte, chains []chain) (names []string, err error) {
	rules, err := s.rulesOf(table, TableName, "")
	if err != nil {
		return nil, err
	}
	have := map[string]string{}
	for _, r := range rules {
		have[r.chain] += shape(r.exprs)
	}
	for _, c := range chains {
		var want string
		for _, r := range c.rules {
			want += shape(r.b)
		}
		if have[c.name] != want {
			names = append(names, fmt.Sprintf("rules of chain %s of table %s", c.name, tableText(table)))
		}
	}
	return names, nil
}

// shape tells rules apart by the names of their expressions and of the sets
// and chains that they lead to. That shows a rule that was deleted, added or
// exchanged, and takes a hundredth of the time of reading every operand.
func shape(exprs []byte) string {
	var all string
	for _, e := range expressions(exprs) {
		all += e.name + " "
		switch e.name {
		case "lookup":
			all += netlink.Text(netlink.Attr(e.data, unix.NFTA_LOOKUP_SET)) + " "
		case "immediate":
			all += e.jump() + " "
		}
	}
	return all + ";"
}
