package nft_test

import (
	"errors"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/nft"
)

// CHECK of what another version has made looks for the elements alone: that version's base
// ruleset is there, and works. Where it was flushed, or elements are missing, CHECK fails.
func TestKernelCheckOfAnotherVersion(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	change(t, table, everything)
	good := render(t, ns)
	var other []string // commands that make the base ruleset one of another version
	for rest := good; ; {
		_, after, ok := strings.Cut(rest, "\tchain skeleton-")
		if !ok {
			break
		}
		family := "bridge"
		if len(other) > 0 {
			family = "inet"
		}
		other = append(other, "rename chain "+family+" cnibox skeleton-"+after[:8]+" skeleton-00000000")
		rest = after
	}
	if len(other) != 2 {
		t.Fatalf("%d base rulesets in\n%s", len(other), good)
	}
	script := strings.Join(other, "\n") + `
flush chain inet cnibox masquerade-all
add rule inet cnibox masquerade-all counter masquerade
add rule bridge cnibox macs counter
delete rule inet cnibox out-10.1.0.0-24 handle `
	list := tool(t, ns, "", "nft", "-a", "list", "chain", "inet", "cnibox", "out-10.1.0.0-24")
	_, handle, _ := strings.Cut(list, "masquerade # handle ")
	script += strings.Fields(handle)[0] + "\nadd rule inet cnibox out-10.1.0.0-24 counter masquerade\n"
	tool(t, ns, script, "nft", "-f", "-")
	if err := table.Check(everything); err != nil {
		t.Errorf("of another version: %v", err)
	}
	missing := func(when, want string) {
		t.Helper()
		err := table.Check(everything)
		if lost := new(nft.MissingError); !errors.As(err, &lost) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", when, err, want)
		}
	}
	tool(t, ns, "delete element inet cnibox dnat4 { tcp . 8080 }", "nft", "-f", "-")
	missing("an element gone", "rule set: missing: tcp dport 8080 -> 10.1.0.2:80")
	tool(t, ns, "flush table inet cnibox", "nft", "-f", "-")
	missing("flushed", "rules of chain ports of table inet cnibox, ")
	change(t, table, everything)
	if err := table.Check(everything); err != nil {
		t.Errorf("after an ADD: %v", err)
	}
	if got := render(t, ns); got != good {
		t.Errorf("after an ADD:\n%s\nwant\n%s", got, good)
	}
}
