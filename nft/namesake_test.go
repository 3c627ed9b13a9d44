package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Networks whose keys begin with the same 32 bits are distinguished, also if their names are too
// long for a comment: GC of one keeps the elements of the other.
func TestKernelNetworksWithSameKey(t *testing.T) {
	long := strings.Repeat("n", 190)
	for name, of := range map[string][2]string{
		"one key":              {"net42889", "net14758"},
		"one key, long names":  {long + "-8493", long + "-38363"},
		"one begins the other": {"net1", "net1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			table := open(t, kerneltest.NS(t))
			one := spec.Attachment{Network: of[0], ContainerID: "c1", IfName: "eth0"}
			two := spec.Attachment{Network: of[1], ContainerID: "c2", IfName: "eth0"}
			if strings.HasPrefix(name, "one key") && spec.NetworkKey(of[0]) != spec.NetworkKey(of[1]) {
				t.Fatal("the two names do not have the same key")
			}
			has := func(o spec.Attachment) func(x *nft.Tx) error {
				return func(x *nft.Tx) error {
					x.Masquerade(o, netip.MustParsePrefix(one4+"/24"))
					x.RecordZone(o, netip.MustParseAddr(one4))
					return nil
				}
			}
			mustUpdate(t, table, has(one))
			mustUpdate(t, table, has(two))
			for _, o := range []spec.Attachment{one, two} {
				if err := table.Check(has(o)); err != nil {
					t.Errorf("%s: %v", o, err)
				}
			}
			mustUpdate(t, table, func(x *nft.Tx) error { x.DeleteStale(one.Network, func(string) bool { return false }); return nil })
			if err := table.Check(has(two)); err != nil {
				t.Errorf("after GC of the first network: %v", err)
			}
			if got, err := table.Owned(one); err != nil || len(got) > 0 {
				t.Errorf("GC left %v, %v", got, err)
			}
			lost, err := table.LostZones(one.Network, func(string) bool { return false })
			if err != nil || len(lost) > 0 {
				t.Errorf("lost zones of the first network: %v, %v", lost, err)
			}
		})
	}
}
