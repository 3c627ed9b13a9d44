// Package nfttest reads and loads rule sets for tests, in the syntax of nft(8).
package nfttest

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// Ruleset is [Read] for a test, which is skipped without nft.
func Ruleset(t testing.TB, ns *netns.NS) string {
	t.Helper()
	text, err := Read(ns)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("SKIPPED: nft is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Read returns the output of "nft list ruleset" in a namespace, without counters. Tables are sorted by
// name, and so are the sets, maps and chains of each, so that equal rule sets are equal text.
func Read(ns *netns.NS) (string, error) {
	if isEmpty, err := empty(ns); isEmpty || err != nil {
		return "", err
	}
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command("nft", "--stateless", "list", "ruleset").Output()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("nft list ruleset: %w", err)
	}
	tables := blocks(string(out), "")
	for i, table := range tables {
		head, body, _ := strings.Cut(table, "\n")
		if strings.HasPrefix(body, "\tcomment ") { // of the table
			comment, rest, _ := strings.Cut(body, "\n")
			head, body = head+"\n"+comment, rest
		}
		tables[i] = head + "\n" + strings.Join(blocks(strings.TrimSuffix(body, "}\n"), "\t"), "") + "}\n"
	}
	return strings.Join(tables, ""), nil
}

// empty reports whether there is no table, without starting nft.
func empty(ns *netns.NS) (bool, error) {
	c, err := nlconn.Open(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return false, err
	}
	defer c.Close()
	tables, err := c.Dump(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, 4), // struct nfgenmsg: all families
	})
	return len(tables) == 0, err
}

// blocks splits a text after each closing brace of one indentation, and sorts the parts.
func blocks(text, indent string) []string {
	all := strings.SplitAfter(text, "\n"+indent+"}\n")
	for i := range all {
		all[i] = strings.TrimLeft(all[i], "\n")
	}
	all = slices.DeleteFunc(all, func(b string) bool { return b == "" })
	slices.Sort(all)
	return all
}

// Load loads rules by "nft -f" for a test, which is skipped without nft.
func Load(t testing.TB, ns *netns.NS, rules string) {
	t.Helper()
	err := ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil && len(out) > 0 {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("SKIPPED: nft is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
}
