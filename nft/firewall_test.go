package nft_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

var (
	ip4 = netip.MustParseAddr(one4)
	ip6 = netip.MustParseAddr(one6)
)

// setForwardDrop sets the policy of FORWARD to DROP in iptables-nft, as Docker does.
func setForwardDrop(t testing.TB, ns *netns.NS) {
	t.Helper()
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		kerneltest.Tool(t, ns, "", program, "-P", "FORWARD", "DROP")
	}
}

func allow(x *nft.Tx, o spec.Attachment) error {
	x.Allow(o, ip4, "CNI-ADMIN")
	x.Allow(o, ip6, "CNI-ADMIN")
	return nil
}

// iptables-nft lists the rules in its tables, and its -C finds them by the arguments of the
// reference.
func TestKernelFilterRulesAreOfIptables(t *testing.T) {
	ns := kerneltest.NS(t)
	setForwardDrop(t, ns)
	table := open(t, ns)
	for range 2 { // the second update changes nothing
		mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
		for program, ip := range map[string]string{"iptables-nft": one4 + "/32", "ip6tables-nft": one6 + "/128"} {
			got := kerneltest.Tool(t, ns, "", program, "-S")
			want := strings.ReplaceAll(`-P INPUT ACCEPT
-P FORWARD DROP
-P OUTPUT ACCEPT
-N CNI-ADMIN
-N CNI-FORWARD
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d $IP -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s $IP -j ACCEPT
-A CNI-FORWARD -d $IP -m conntrack --ctstate DNAT -j ACCEPT
`, "$IP", ip)
			if got != want {
				t.Errorf("%s: got\n%swant\n%s", program, got, want)
			}
			kerneltest.Tool(t, ns, "", program, "-C", "FORWARD", "-m", "comment", "--comment", "CNI firewall plugin rules", "-j", "CNI-FORWARD")
			kerneltest.Tool(t, ns, "", program, "-C", "CNI-FORWARD", "-d", ip, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
			kerneltest.Tool(t, ns, "", program, "-C", "CNI-FORWARD", "-d", ip, "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT")
			kerneltest.Tool(t, ns, "", program, "-C", "CNI-FORWARD", "-s", ip, "-j", "ACCEPT")
		}
	}
}

// Release deletes only the rules of its attachment, not shared ones or those of other programs. In
// the reference a late DEL deletes the rules of an address's new owner.
func TestKernelFilterRelease(t *testing.T) {
	ns := kerneltest.NS(t)
	setForwardDrop(t, ns)
	kerneltest.Tool(t, ns, "", "iptables-nft", "-A", "FORWARD", "-s", one4, "-j", "ACCEPT")
	kerneltest.Tool(t, ns, "", "iptables-nft", "-N", "CNI-FORWARD") // empty, as left by another plugin
	table := open(t, ns)
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
	kerneltest.Tool(t, ns, "", "iptables-nft", "-A", "CNI-FORWARD", "-s", one4, "-p", "tcp", "-j", "ACCEPT")
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, other) }) // now owns both addresses
	with := kerneltest.Tool(t, ns, "", "iptables-nft", "-S")
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Addresses(ip4, ip6)
		x.Release(owner)
		return nil
	})
	if got := kerneltest.Tool(t, ns, "", "iptables-nft", "-S"); got != with {
		t.Errorf("a late DEL of the first owner changed\n%s\nto\n%s", with, got)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other, nft.KindFirewall); return nil })
	got := kerneltest.Tool(t, ns, "", "iptables-nft", "-S")
	for _, gone := range []string{"conntrack", "CNI-FORWARD -s " + one4 + "/32 -j"} {
		if strings.Contains(got, gone) {
			t.Errorf("%q stayed in\n%s", gone, got)
		}
	}
	for _, kept := range []string{"-j CNI-FORWARD", "-N CNI-ADMIN", "-j CNI-ADMIN"} {
		if !strings.Contains(got, kept) {
			t.Errorf("%q went from\n%s", kept, got)
		}
	}
	if got := kerneltest.Tool(t, ns, "", "ip6tables-nft", "-S"); strings.Contains(got, ip6.String()) || !strings.Contains(got, "-j CNI-ADMIN") {
		t.Errorf("of IPv6 there stayed\n%s", got)
	}
	if got := kerneltest.Tool(t, ns, "", "iptables-nft", "-S"); !strings.Contains(got, "-A FORWARD -s 10.9.0.11/32 -j ACCEPT") ||
		!strings.Contains(got, "-A CNI-FORWARD -s 10.9.0.11/32 -p tcp -j ACCEPT") {
		t.Errorf("rules of others went from\n%s", got)
	}
	if text := nfttest.Ruleset(t, ns); strings.Contains(text, "elements = ") || strings.Contains(text, "admin-") {
		t.Errorf("after release:\n%s", text)
	}
}

// Rules of the reference, which may be duplicates from concurrent ADDs, are deleted for an address
// without an owner.
func TestKernelReleaseReferenceFirewall(t *testing.T) {
	ns := kerneltest.NS(t)
	kerneltest.Tool(t, ns, `*filter
:CNI-FORWARD -
-A CNI-FORWARD -d 10.9.0.11/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.12/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.0/24 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -j DROP
-A CNI-FORWARD -d 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD ! -s 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -d 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -d 10.9.0.11/32 -m conntrack ! --ctstate NEW -j ACCEPT
COMMIT
`, "iptables-nft-restore")
	table := open(t, ns)
	release := func() {
		mustUpdate(t, table, func(x *nft.Tx) error {
			x.Addresses(ip4)
			x.Release(owner, nft.KindFirewall)
			return nil
		})
	}
	release()
	release()
	got, want := kerneltest.Tool(t, ns, "", "iptables-nft", "-S", "CNI-FORWARD"), `-N CNI-FORWARD
-A CNI-FORWARD -s 10.9.0.12/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.0/24 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -j DROP
-A CNI-FORWARD -d 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD ! -s 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -s 10.9.0.11/32 -d 10.9.0.11/32 -j ACCEPT
-A CNI-FORWARD -d 10.9.0.11/32 -m conntrack ! --ctstate NEW -j ACCEPT
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// CHECK reports each rule that is missing in the tables of iptables, and changes nothing.
func TestKernelFilterCheck(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	check := func() error { return table.Check(func(x *nft.Tx) error { return allow(x, owner) }) }
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
	if err := check(); err != nil {
		t.Errorf("without iptables: %v", err)
	}
	setForwardDrop(t, ns) // by another program, after ADD
	if err := check(); err != nil {
		t.Errorf("where FORWARD drops: %v", err)
	}
	for _, made := range []bool{true, false} { // with FORWARD and without our rules, then without FORWARD
		kerneltest.Tool(t, ns, "flush ruleset ip\nflush ruleset ip6", "nft", "-f", "-")
		if made {
			setForwardDrop(t, ns)
		}
		before := nfttest.Ruleset(t, ns)
		for _, want := range []string{"rule -j CNI-FORWARD of chain FORWARD of table ip filter", "rule -j CNI-ADMIN of chain CNI-FORWARD of table ip6 filter",
			"rule -s 10.9.0.11 -j ACCEPT", "rule -d fd00:9::11 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "--ctstate DNAT"} {
			if err := check(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q in it", err, want)
			}
		}
		if after := nfttest.Ruleset(t, ns); after != before {
			t.Errorf("CHECK changed\n%s\nto\n%s", before, after)
		}
		mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
		if err := check(); err != nil {
			t.Errorf("after another ADD: %v", err)
		}
	}
	kerneltest.Tool(t, ns, "", "iptables-nft", "-D", "CNI-FORWARD", "-s", one4, "-j", "ACCEPT")
	if err := check(); err == nil || err.Error() != "rule set: missing: rule -s 10.9.0.11 -j ACCEPT of chain CNI-FORWARD of table ip filter" {
		t.Errorf("one rule gone: %v", err)
	}
}

// The administrator's chain in the table of cnibox keeps its rules through ADD, DEL and GC.
func TestKernelAdminChain(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, owner) })
	kerneltest.Tool(t, ns, "add rule inet cnibox admin-CNI-ADMIN tcp dport 23 drop", "nft", "-f", "-")
	if err := table.Check(func(x *nft.Tx) error { return allow(x, owner) }); err != nil {
		t.Error(err)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { return allow(x, other) })
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); x.Release(other); return nil })
	if err := table.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := nfttest.Ruleset(t, ns); !strings.Contains(text, "chain admin-CNI-ADMIN {\n\t\ttcp dport 23 drop") {
		t.Errorf("the administrator's rule went:\n%s", text)
	}
}

// The policy of a bridge is deleted with the last attachment that needs it. In the reference it
// remains.
func TestKernelBridgePolicyWhileNeeded(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	third := spec.Attachment{Network: "net2", ContainerID: "c3", IfName: "eth0"}
	has := func(when string, want ...string) {
		t.Helper()
		text := nfttest.Ruleset(t, ns)
		for _, name := range []string{"managed", "within", "isolated"} {
			_, set, _ := strings.Cut(text, "\tset "+name+" {")
			set, _, _ = strings.Cut(set, "\n\t}")
			got := strings.Contains(set, `"br0"`)
			if want := strings.Contains(strings.Join(want, " ")+" ", name+" "); got != want {
				t.Errorf("%s: element of %s: %v, want %v", when, name, got, want)
			}
		}
	}
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.SetBridgePolicy(owner, "br0", true)
		x.SetBridgePolicy(other, "br0", false)
		x.SetBridgePolicy(third, "br0", false)
		x.SetBridgePolicy(third, "br1", true)
		return nil
	})
	has("all", "managed", "within", "isolated")
	police := func(x *nft.Tx) error { x.SetBridgePolicy(owner, "br0", true); return nil }
	if err := table.Check(police); err != nil {
		t.Error(err)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner, nft.KindFirewall); return nil })
	has("without the isolated one", "managed", "within")
	if err := table.Check(police); err == nil {
		t.Error("CHECK of a member that is none")
	}
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.DeleteStale("net1", func(string) bool { return false }, nft.KindFirewall)
		return nil
	})
	has("after GC of one network", "managed", "within")
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Release(third)
		x.SetBridgePolicy(owner, "br0", false)
		return nil
	})
	has("another one in the same update", "managed", "within")
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	has("no member")
	if text := nfttest.Ruleset(t, ns); strings.Contains(text, "br1") {
		t.Errorf("the other bridge stayed:\n%s", text)
	}
}

// Zones are those of all owners; an address without an owner is in none.
func TestKernelZones(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.RecordZone(owner, ip4)
		x.RecordZone(other, ip6)
		return nil
	})
	all, err := table.Zones()
	if err != nil || len(all) != 2 || all[0].Addr() != ip4 || all[0].OwnerKey() != owner.Key() || all[1].Addr() != ip6 || all[1].OwnerKey() != other.Key() {
		t.Errorf("got %v, %v", all, err)
	}
	free := netip.MustParseAddr("10.9.9.9")
	got, err := table.Unowned(ip4, free, ip6)
	if err != nil || !slices.Equal(got, []netip.Addr{free}) {
		t.Errorf("without an owner: %v, %v", got, err)
	}
	lost, err := table.LostZones("net1", func(key string) bool { return key == other.Key() })
	if err != nil || len(lost) != 1 || lost[0].Addr() != ip4 {
		t.Errorf("lost: got %v, %v", lost, err)
	}
}
