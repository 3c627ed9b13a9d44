package nft_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Attachments of several networks may have the same address. It is that of the last ADD: CHECK of the others finds it,
// and their DEL or GC leaves it. After DEL of the last one they lack it until it is added again. DEL of all leaves
// nothing.
func TestKernelAddressOfTwoNetworks(t *testing.T) {
	for name, release := range map[string]func(x *nft.Tx){
		"DEL":       func(x *nft.Tx) { x.Release(owner) },
		"known DEL": func(x *nft.Tx) { x.ReleaseKnown(owner, knownAddresses(owner), addressKinds...) },
		"GC":        func(x *nft.Tx) { x.DeleteStale("net1", func(string) bool { return false }) },
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			setForwardDrop(t, ns)
			table := open(t, ns)
			second := spec.Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
			ips := func(o spec.Attachment) func(x *nft.Tx) error {
				return func(x *nft.Tx) error {
					x.Masquerade(o, netip.MustParsePrefix(one4+"/24"))
					x.Masquerade(o, netip.MustParsePrefix(one6+"/64"))
					x.RecordZone(o, ip4)
					x.RecordZone(o, ip6)
					x.RecordOwner(o)
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
				third := spec.Attachment{Network: "net3", ContainerID: "c1", IfName: "eth0"}
				x.Masquerade(third, netip.MustParsePrefix("10.7.0.1/24"))
				x.Allow(third, netip.MustParseAddr("10.7.0.1"), "CNI-ADMIN")
				x.Allow(third, netip.MustParseAddr("fd07::1"), "CNI-ADMIN")
				return nil
			}
			mustUpdate(t, table, apart)
			empty := nfttest.Ruleset(t, ns)
			mustUpdate(t, table, ips(owner))
			mustUpdate(t, table, ips(second))
			if owned, err := table.Owned(second, nft.KindMasquerade); err != nil || len(owned) != 2 || owned[0].String() != "masquerade "+one4 {
				t.Errorf("the second has %v, %v", owned, err)
			}
			kerneltest.Tool(t, kerneltest.NS(t), kerneltest.Tool(t, ns, "", "nft", "list", "ruleset"), "nft", "-f", "-")
			lost := func(network string, want ...netip.Addr) {
				t.Helper()
				zones, err := table.LostZones(network, func(string) bool { return false })
				var got []netip.Addr
				for _, e := range zones {
					got = append(got, e.Addr())
				}
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("zones of %s: %v, %v; want %v", network, got, err, want)
				}
			}
			check(second)
			if err := table.Check(func(x *nft.Tx) error { x.Masquerade(owner, netip.MustParsePrefix(one4+"/24")); return allow(x, owner) }); err != nil {
				t.Errorf("the first: %v", err)
			}
			lost("net1")
			lost("net2", ip4, ip6)
			mustUpdate(t, table, func(x *nft.Tx) error { release(x); return nil })
			check(second)
			if list := kerneltest.Tool(t, ns, "", "iptables-nft", "-S", "CNI-FORWARD"); strings.Count(list, one4) != 3 {
				t.Errorf("rules of iptables:\n%s", list)
			}
			mustUpdate(t, table, ips(owner))
			check(owner)
			mustUpdate(t, table, ips(second))
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(second); return nil })
			err := table.Check(ips(owner))
			if missing := new(nft.MissingError); !errors.As(err, &missing) || !strings.Contains(err.Error(), "masquerade "+one4) ||
				!strings.Contains(err.Error(), "allow "+one6) || !strings.Contains(err.Error(), "zone of firewalld for "+one4) {
				t.Errorf("after DEL of the second, CHECK of the first: %v", err)
			}
			mustUpdate(t, table, ips(owner)) // RESTORE
			check(owner)
			mustUpdate(t, table, func(x *nft.Tx) error { release(x); return nil })
			mustUpdate(t, table, apart)
			if got := nfttest.Ruleset(t, ns); got != empty {
				t.Errorf("left behind\n%s", kerneltest.Diff(empty, got))
			}
		})
	}
}

// addressKinds are the kinds of elements for addresses.
var addressKinds = []nft.Kind{nft.KindMasquerade, nft.KindFirewall, nft.KindZone}

// knownAddresses names the elements for ip4 and ip6.
func knownAddresses(o spec.Attachment) nft.Known {
	return slices.Concat(nft.KnownMasquerade(ip4), nft.KnownMasquerade(ip6), nft.KnownFirewall(o, []netip.Addr{ip4, ip6}, []string{"br0", "veth1"}))
}
