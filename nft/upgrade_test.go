package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/nft"
	"cnibox/spec"
)

// CHECK of what another version has made looks for the elements alone: that version's base
// ruleset is there, and works. Where it was flushed, or elements are missing, CHECK fails.
func TestKernelCheckOfAnotherVersion(t *testing.T) {
	for _, era := range []string{"comment", "chains"} { // where the version stood
		t.Run(era, func(t *testing.T) { checkOfAnotherVersion(t, era) })
	}
}

func checkOfAnotherVersion(t *testing.T, era string) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	change(t, table, everything)
	good := render(t, ns)
	script := "flush chain FAMILY cnibox version\nadd rule FAMILY cnibox version return comment \"base ruleset 0\"\n"
	if era == "chains" {
		script = "delete chain FAMILY cnibox version\nadd chain FAMILY cnibox skeleton-00000000\nadd rule FAMILY cnibox skeleton-00000000 return\n"
	}
	script = strings.ReplaceAll(script, "FAMILY", "inet") + strings.ReplaceAll(script, "FAMILY", "bridge") + `
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
	missing("flushed", "base ruleset of table inet cnibox (the next ADD makes all rules anew)")
	change(t, table, everything)
	if err := table.Check(everything); err != nil {
		t.Errorf("after an ADD: %v", err)
	}
	if got := render(t, ns); got != good {
		t.Errorf("after an ADD:\n%s\nwant\n%s", got, good)
	}
}

// The first change upgrades the rule set of revision 9f333ea, be it an ADD or a DEL: its
// elements stay, and what no rule or verb uses any more goes.
func TestKernelUpgrade(t *testing.T) {
	old, err := os.ReadFile(filepath.Join("testdata", "9f333ea.nft"))
	if err != nil {
		t.Fatal(err)
	}
	second := spec.Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
	third := spec.Attachment{Network: "net3", ContainerID: "c1", IfName: "eth0"}
	addresses := func(o spec.Attachment) func(x *nft.Tx) error {
		return func(x *nft.Tx) error {
			x.Masquerade(o, netip.MustParsePrefix(one4+"/24"))
			x.AllowOwnTable(o, ip4, "CNI-ADMIN")
			x.Police(o, "br0", true)
			return nil
		}
	}
	for name, first := range map[string]func(x *nft.Tx) error{
		"ADD": func(x *nft.Tx) error {
			x.NoAdverts(other, "veth9")
			x.Masquerade(other, netip.MustParsePrefix(two4+"/24"))
			return nil
		},
		"DEL":                  func(x *nft.Tx) error { x.Release(third); return nil },
		"DEL of a first owner": func(x *nft.Tx) error { x.Release(owner); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			table := open(t, ns)
			tool(t, ns, string(old), "nft", "-f", "-")
			change(t, table, first)
			list := render(t, ns)
			for _, gone := range []string{"skeleton-", "isolated_ports", "gateways", "chain isolate"} {
				if strings.Contains(list, gone) {
					t.Errorf("%q stays in\n%s", gone, list)
				}
			}
			mine := func(x *nft.Tx) error {
				x.GuardMAC(owner, "veth1", net.HardwareAddr{2, 0, 0, 0, 0, 1})
				return errors.Join(addresses(owner)(x), x.PortMap(owner, mapping(unix.IPPROTO_TCP, 8080, one4)))
			}
			owners := owner.Key()
			if name == "DEL of a first owner" {
				owners, mine = second.Key()+third.Key(), addresses(second) // either of them is the next
			}
			if err := errors.Join(table.Check(mine), table.Check(addresses(second))); err != nil {
				t.Error(err)
			}
			for _, set := range []string{"map masq4 {", "map allow4 {"} {
				_, elements, _ := strings.Cut(list, set)
				_, comment, _ := strings.Cut(elements, one4+` comment "`)
				if key, _, _ := strings.Cut(comment, " "); key == "" || !strings.Contains(owners, key) {
					t.Errorf("%s is of %q in %s", one4, key, elements)
				}
			}
			change(t, table, func(x *nft.Tx) error {
				for _, o := range []spec.Attachment{owner, second, other, third} {
					x.Release(o)
				}
				return nil
			})
			if list := render(t, ns); strings.Contains(list, "elements = ") {
				t.Errorf("after DEL of all:\n%s", list)
			}
		})
	}
}
