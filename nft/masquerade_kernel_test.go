package nft_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/spec"
)

// Attachments of several networks may have the same address. The first one owns its masquerading
// and accept rules, and after its DEL or GC the next one. DEL of the last leaves nothing.
func TestKernelAddressOfTwoNetworks(t *testing.T) {
	for name, release := range map[string]func(x *nft.Tx){
		"DEL": func(x *nft.Tx) { x.Release(owner) },
		"GC":  func(x *nft.Tx) { x.DeleteStale("net1", func(string) bool { return false }) },
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			setForwardDrop(t, ns)
			table := open(t, ns)
			second := spec.Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
			third := spec.Attachment{Network: "net3", ContainerID: "c1", IfName: "eth0"}
			ips := func(o spec.Attachment) func(x *nft.Tx) error {
				return func(x *nft.Tx) error {
					x.Masquerade(o, netip.MustParsePrefix(one4+"/24"))
					x.Masquerade(o, netip.MustParsePrefix(one6+"/64"))
					x.RecordZone(o, ip4)
					x.RecordZone(o, ip6)
					return allow(x, o)
				}
			}
			check := func(all ...spec.Attachment) {
				t.Helper()
				for _, o := range all {
					if err := table.Check(ips(o)); err != nil {
						t.Errorf("%s: %v", o, err)
					}
				}
			}
			apart := func(x *nft.Tx) error {
				x.Masquerade(third, netip.MustParsePrefix("10.7.0.1/24"))
				x.Allow(third, netip.MustParseAddr("10.7.0.1"), "CNI-ADMIN")
				x.Allow(third, netip.MustParseAddr("fd07::1"), "CNI-ADMIN")
				return nil
			}
			mustUpdate(t, table, apart)
			empty := nfttest.Ruleset(t, ns)
			mustUpdate(t, table, ips(owner))
			mustUpdate(t, table, ips(second))
			mustUpdate(t, table, ips(third))
			check(owner, second, third)
			if owned, err := table.Owned(second, nft.KindMasquerade); err != nil || len(owned) != 2 || owned[0].String() != "masquerade "+one4 {
				t.Errorf("the second has %v, %v", owned, err)
			}
			kerneltest.Tool(t, kerneltest.NS(t), kerneltest.Tool(t, ns, "", "nft", "list", "ruleset"), "nft", "-f", "-")
			zoned := func(want ...netip.Addr) {
				t.Helper()
				got, err := table.Zoned(owner, ip4)
				lost, err2 := table.LostZones(owner.Network, func(string) bool { return false })
				if err != nil || err2 != nil || !slices.Equal(got, want) || !slices.Equal(lost, want) {
					t.Errorf("in firewalld: %v, %v; %v, %v; want %v", got, err, lost, err2, want)
				}
			}
			zoned()
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(second); return nil })
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(third, nft.KindZone); return nil })
			zoned(ip4, ip6)
			check(owner)
			mustUpdate(t, table, ips(third))
			check(owner, third)
			mustUpdate(t, table, ips(second))
			late := spec.Attachment{Network: "net2", ContainerID: "c2", IfName: "eth0"} // added before DEL of the second
			mustUpdate(t, table, ips(late))
			mustUpdate(t, table, func(x *nft.Tx) error { release(x); return nil })
			check(second, third, late)
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(late); return nil })
			check(second, third)
			if list := kerneltest.Tool(t, ns, "list map inet cnibox masq4", "nft", "-f", "-"); !strings.Contains(list, one4+" comment") {
				t.Errorf("%s is not masqueraded: %s", one4, list)
			}
			if list := kerneltest.Tool(t, ns, "", "iptables-nft", "-S", "CNI-FORWARD"); strings.Count(list, one4) != 3 {
				t.Errorf("rules of iptables:\n%s", list)
			}
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(second); return nil })
			check(third)
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(third); return nil })
			mustUpdate(t, table, apart)
			if got := nfttest.Ruleset(t, ns); got != empty {
				t.Errorf("left behind\n%s", got)
			}
		})
	}
}
