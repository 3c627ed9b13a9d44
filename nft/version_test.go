package nft_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
)

// CHECK accepts the base ruleset of another version and compares only the elements. It fails if
// that was flushed or if elements are missing.
func TestKernelCheckOfAnotherVersion(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	mustUpdate(t, table, everything)
	good := nfttest.Ruleset(t, ns)
	script := "flush chain FAMILY cnibox version\nadd rule FAMILY cnibox version return comment \"base ruleset 0\"\n"
	script = strings.ReplaceAll(script, "FAMILY", "inet") + strings.ReplaceAll(script, "FAMILY", "bridge") + `
flush chain inet cnibox masquerade-all
add rule inet cnibox masquerade-all counter masquerade
add rule bridge cnibox macs counter
delete rule inet cnibox out-10.9.0.0-24 handle `
	list := kerneltest.Tool(t, ns, "", "nft", "-a", "list", "chain", "inet", "cnibox", "out-10.9.0.0-24")
	_, handle, _ := strings.Cut(list, "masquerade # handle ")
	script += strings.Fields(handle)[0] + "\nadd rule inet cnibox out-10.9.0.0-24 counter masquerade\n"
	kerneltest.Tool(t, ns, script, "nft", "-f", "-")
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
	kerneltest.Tool(t, ns, "delete element inet cnibox dnat4 { tcp . 8080 }", "nft", "-f", "-")
	missing("an element gone", "rule set: missing: tcp dport 8080 -> 10.9.0.11:80")
	kerneltest.Tool(t, ns, "flush table inet cnibox", "nft", "-f", "-")
	missing("flushed", "base ruleset of table inet cnibox (the next ADD makes all rules anew)")
	mustUpdate(t, table, everything)
	if err := table.Check(everything); err != nil {
		t.Errorf("after an ADD: %v", err)
	}
	if got := nfttest.Ruleset(t, ns); got != good {
		t.Errorf("after an ADD:\n%s\nwant\n%s", got, good)
	}
}
