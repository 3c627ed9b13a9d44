package nft_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Adding to a long CNI-FORWARD does not read it. Missing rules are found nevertheless, and Release
// deletes the rules of its address only.
func TestKernelFilterLongChain(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	one := func(i int) (spec.Attachment, netip.Addr) {
		return spec.Attachment{Network: "net1", ContainerID: strconv.Itoa(i), IfName: "eth0"}, netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})
	}
	add := func(i int, admin string) func(x *nft.Tx) error {
		return func(x *nft.Tx) error {
			o, ip := one(i)
			x.Handles(nft.RuleHandles{}, true)
			x.Allow(o, ip, admin)
			return nil
		}
	}
	for i := range 60 {
		mustUpdate(t, table, add(i, "CNI-ADMIN"))
	}
	before := nfttest.Ruleset(t, ns)
	mustUpdate(t, table, add(200, "CNI-ADMIN"))
	mustUpdate(t, table, add(200, "CNI-ADMIN"))
	if n := strings.Count(nfttest.Ruleset(t, ns), "ip saddr 10.9.0.200 counter accept"); n != 1 {
		t.Errorf("%d rules of one address", n)
	}
	mustUpdate(t, table, add(201, "MINE"))
	for i, admin := range map[int]string{7: "CNI-ADMIN", 200: "CNI-ADMIN", 201: "MINE"} {
		if err := table.Check(add(i, admin)); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i := 200; i <= 201; i++ {
		mustUpdate(t, table, func(x *nft.Tx) error {
			o, _ := one(i)
			x.Release(o)
			return nil
		})
	}
	after := nfttest.Ruleset(t, ns)
	if want := strings.Replace(before, "\tchain FORWARD {", "\tchain MINE {\n\t}\n\tchain FORWARD {", 1); strings.Count(after, "\n") != strings.Count(want, "\n")+1 {
		t.Errorf("got\n%s\nwant\n%s and a jump to MINE", after, want)
	}
	kerneltest.Tool(t, ns, "", "iptables-nft", "-D", "CNI-FORWARD", "-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", "CNI-ADMIN")
	mustUpdate(t, table, add(200, "CNI-ADMIN"))
	if err := table.Check(add(7, "CNI-ADMIN")); err != nil {
		t.Error(err)
	}
	for i := range 201 {
		mustUpdate(t, table, func(x *nft.Tx) error {
			o, _ := one(i)
			x.Release(o)
			return nil
		})
	}
	if got := nfttest.Ruleset(t, ns); strings.Contains(got, "10.9.0.") {
		t.Errorf("after the last one\n%s", got)
	}
}

// A policy that another program sets for FORWARD between reading and the batch is not reverted.
func TestKernelFilterKeepsConcurrentPolicy(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	fault.Hook = func(string) error {
		fault.Hook = nil
		kerneltest.Tool(t, ns, "", "iptables-nft", "-P", "FORWARD", "DROP")
		return nil
	}
	defer func() { fault.Hook = nil }()
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
	for _, want := range []string{"-P FORWARD DROP\n", "-j CNI-FORWARD\n", "-A CNI-FORWARD -s 10.9.0.11/32 -j ACCEPT\n"} {
		if got := kerneltest.Tool(t, ns, "", "iptables-nft", "-S"); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
