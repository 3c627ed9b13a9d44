package nft

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
	"cnibox/rtnl"
)

// Render returns all tables of the namespace as text, close to what nft
// prints: tables, sets, chains and elements by name, rules in their order;
// handles and counters are left out. Equal rule sets give equal text. It is
// for people and tests. nil is the current namespace.
func Render(ns *rtnl.NS) (string, error) {
	s, err := dial(ns)
	if err != nil {
		return "", err
	}
	defer s.close()
	tables, err := s.tables()
	if err != nil {
		return "", err
	}
	slices.SortFunc(tables, func(a, b chainID) int {
		return strings.Compare(tableName(a), tableName(b))
	})
	var out strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&out, "table %s {\n", tableName(t))
		if err := s.renderSets(&out, t); err != nil {
			return "", err
		}
		if err := s.renderChains(&out, t); err != nil {
			return "", err
		}
		out.WriteString("}\n")
	}
	return out.String(), nil
}

// tableName is a table's name with its family, as nft writes it.
func tableName(t chainID) string {
	names := map[byte]string{
		inet: "inet", bridge: "bridge", v4: "ip", v6: "ip6", unix.NFPROTO_ARP: "arp", unix.NFPROTO_NETDEV: "netdev",
	}
	return names[t.family] + " " + t.table
}

// renderSets writes the named sets and maps of a table.
func (s *sock) renderSets(out *strings.Builder, t chainID) error {
	type named struct {
		name  string
		flags uint64
	}
	var all []named
	err := absent(s.ask(nfTables|unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t.family, func(b *netlink.Buf) {
		b.Text(unix.NFTA_SET_TABLE, t.table)
	}, func(data []byte) {
		if netlink.Text(netlink.Attr(data, unix.NFTA_SET_TABLE)) == t.table {
			all = append(all, named{netlink.Text(netlink.Attr(data, unix.NFTA_SET_NAME)), num(data, unix.NFTA_SET_FLAGS)})
		}
	}))
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	for _, set := range all {
		word := "set"
		if set.flags&unix.NFT_SET_MAP != 0 {
			word = "map"
		}
		lines, err := s.elementLines(t, set.name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\t%s %s {%s}\n", word, set.name, strings.Join(lines, ""))
	}
	return nil
}

// elementLines writes the elements of a set, sorted.
func (s *sock) elementLines(t chainID, name string) (lines []string, err error) {
	var ours *set
	for i := range sets {
		if t.table == TableName && sets[i].table == t.family && sets[i].name == name {
			ours = &sets[i]
		}
	}
	err = absent(s.ask(nfTables|unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, t.family, func(b *netlink.Buf) {
		b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
		b.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
	}, func(data []byte) {
		decodeElements(data, nil, func(e element) { lines = append(lines, elementLine(ours, &e)) })
	}))
	if len(lines) > 0 {
		slices.Sort(lines)
		lines = append(lines, "\n\t")
	}
	return lines, err
}

// elementLine writes an element in words, or in hex when the set is not ours.
func elementLine(ours *set, e *element) string {
	words := hex.EncodeToString(e.key) + " : " + hex.EncodeToString(e.data)
	if ours != nil {
		words = ours.describe(e)
	}
	if e.chain != "" {
		words += " : jump " + e.chain
	}
	return fmt.Sprintf("\n\t\t%s # %s", words, e.owner)
}

// renderChains writes the chains of a table, each with its rules.
func (s *sock) renderChains(out *strings.Builder, t chainID) error {
	chains, err := s.chainsIn(t.family, t.table)
	if err != nil {
		return err
	}
	rules, err := s.rulesOf(t.family, t.table, "")
	if err != nil {
		return err
	}
	slices.SortFunc(chains, func(a, b listedChain) int { return strings.Compare(a.name, b.name) })
	for _, c := range chains {
		fmt.Fprintf(out, "\tchain %s {%s\n", c.name, c.hook())
		for _, r := range rules {
			if r.chain != c.name {
				continue
			}
			fmt.Fprintf(out, "\t\t%s", ruleText(t.family, r.exprs))
			if r.comment != "" {
				fmt.Fprintf(out, " # %s", r.comment)
			}
			out.WriteString("\n")
		}
		out.WriteString("\t}\n")
	}
	return nil
}

// hook describes where a base chain sits; "" for other chains.
func (c *listedChain) hook() string {
	hook := netlink.Attr(c.data, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return ""
	}
	return fmt.Sprintf(" # %s hook %d priority %d policy %d", netlink.Text(netlink.Attr(c.data, unix.NFTA_CHAIN_TYPE)),
		num(hook, unix.NFTA_HOOK_HOOKNUM), int32(num(hook, unix.NFTA_HOOK_PRIORITY)), num(c.data, unix.NFTA_CHAIN_POLICY))
}
