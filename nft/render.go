package nft

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

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
	var blocks []string
	for _, t := range tables {
		sets, err := s.renderSets(t)
		if err != nil {
			return "", err
		}
		chains, err := s.renderChains(t)
		if err != nil {
			return "", err
		}
		blocks = append(blocks, "table "+tableName(t)+" {\n"+sets+chains+"}\n")
	}
	return sorted(blocks), nil
}

// sorted joins blocks of text, each of which begins with the name it has its
// place by. Sorting nothing but strings keeps the program small.
func sorted(blocks []string) string {
	slices.Sort(blocks)
	return strings.Join(blocks, "")
}

// tableName is a table's name with its family, as nft writes it.
func tableName(t chainID) string {
	names := map[byte]string{
		inet: "inet", bridge: "bridge", v4: "ip", v6: "ip6", unix.NFPROTO_ARP: "arp", unix.NFPROTO_NETDEV: "netdev",
	}
	return names[t.family] + " " + t.table
}

// renderSets returns the named maps of a table, then its sets. Those that nft made
// for a single rule are among them, under names like __set0.
func (s *sock) renderSets(t chainID) (string, error) {
	words := map[string]string{} // by name
	err := absent(s.ask(nfTables|unix.NFT_MSG_GETSET, netlink.Dump, t.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_TABLE, t.table)
	}, func(data []byte) {
		if text(data, unix.NFTA_SET_TABLE) != t.table {
			return
		}
		word := "set"
		if num(data, unix.NFTA_SET_FLAGS)&unix.NFT_SET_MAP != 0 {
			word = "map"
		}
		words[text(data, unix.NFTA_SET_NAME)] = word
	}))
	if err != nil {
		return "", err
	}
	var blocks []string
	for name, word := range words {
		lines, err := s.elementLines(t, name)
		if err != nil {
			return "", err
		}
		blocks = append(blocks, fmt.Sprintf("\t%s %s {%s}\n", word, name, lines))
	}
	return sorted(blocks), nil
}

// elementLines returns the elements of a set, one a line, in order of their text:
// the kernel's own is that of a hash.
func (s *sock) elementLines(t chainID, name string) (string, error) {
	var ours *set
	for _, in := range sets {
		if t.table == TableName && in.table == t.family && in.name == name {
			ours = in
		}
	}
	var lines []string
	err := absent(s.ask(nfTables|unix.NFT_MSG_GETSETELEM, netlink.Dump, t.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, name)
	}, func(data []byte) {
		decodeElements(data, nil, func(e element) { lines = append(lines, elementLine(ours, &e)) })
	}))
	if len(lines) == 0 {
		return "", err
	}
	return sorted(lines) + "\n\t", err
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

// renderChains returns the chains of a table by name, each with its rules in the
// order in which packets meet them.
func (s *sock) renderChains(t chainID) (string, error) {
	chains, err := s.chainsIn(t.family, t.table)
	if err != nil {
		return "", err
	}
	rules, err := s.rulesOf(t.family, t.table, "")
	if err != nil {
		return "", err
	}
	var blocks []string
	for _, c := range chains {
		block := "\tchain " + c.name + " {" + c.hook() + "\n"
		for _, r := range rules {
			if r.chain != c.name {
				continue
			}
			block += "\t\t" + ruleText(t.family, r.exprs)
			if r.comment != "" {
				block += " # " + r.comment
			}
			block += "\n"
		}
		blocks = append(blocks, block+"\t}\n")
	}
	return sorted(blocks), nil
}

// hook describes where a base chain sits; "" for other chains. Numbers of hooks are
// NF_INET_*, include/uapi/linux/netfilter.h; smaller priorities come first.
func (c *listedChain) hook() string {
	hook := attribute(c.data, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return ""
	}
	return fmt.Sprintf(" # %s hook %d priority %d policy %d", text(c.data, unix.NFTA_CHAIN_TYPE),
		num(hook, unix.NFTA_HOOK_HOOKNUM), int32(num(hook, unix.NFTA_HOOK_PRIORITY)), num(c.data, unix.NFTA_CHAIN_POLICY))
}
