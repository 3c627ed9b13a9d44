package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/spec"
)

// A Collection releases many attachments in one transaction. If one fails, it takes a few more, and
// the others are still released. Elements of another owner are kept.
func TestKernelCollectionIsolatesFailure(t *testing.T) {
	for name, tt := range map[string]struct {
		fails   int // index of the attachment whose update fails; -1: none
		batches int // maximal number of transactions
	}{"together": {-1, 1}, "first fails": {0, 6}, "one in the middle fails": {15, 6}, "last fails": {31, 6}} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { fault.Hook = nil })
			ns := kerneltest.NS(t)
			table := open(t, ns)
			attachment := func(i int) spec.Attachment {
				return spec.Attachment{Network: "many", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
			}
			address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 1, byte(i)}) }
			const all = 32
			mustUpdate(t, table, func(x *nft.Tx) error {
				for i := range all {
					x.Masquerade(attachment(i), netip.PrefixFrom(address(i), 24))
					x.Allow(attachment(i), address(i), "CNI-ADMIN")
				}
				x.Masquerade(owner, netip.PrefixFrom(ip4, 24))
				return nil
			})
			batches := 0
			fault.Hook = func(what string) error {
				if what == "nft batch" {
					batches++
				}
				return nil
			}
			var c nft.Collection
			odd := errors.New("made to fail")
			failed := map[int]error{}
			for i := range all {
				ctx := c.Collect(t.Context(), attachment(i), func(_ bool, err error) {
					if err != nil {
						failed[i] = err
					}
				})
				for _, kind := range []nft.Kind{nft.KindMasquerade, nft.KindFirewall} { // like the plugins of a chain
					err := table.Update(ctx, func(x *nft.Tx) error {
						x.Release(attachment(i), kind)
						if i == tt.fails {
							return odd
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			if batches != 0 {
				t.Errorf("%d transactions before the commit", batches)
			}
			c.Commit(t.Context(), table)
			if batches == 0 || batches > tt.batches {
				t.Errorf("%d transactions, want 1 to %d", batches, tt.batches)
			}
			rules := nfttest.Ruleset(t, ns)
			for i := range all {
				there := strings.Contains(rules, fmt.Sprintf("many/c%d/eth0", i))
				if fails := i == tt.fails; there != fails || fails != errors.Is(failed[i], odd) {
					t.Errorf("c%d: elements are there: %t, error %v", i, there, failed[i])
				}
			}
			if !strings.Contains(rules, owner.ContainerID) {
				t.Errorf("what another attachment owns is gone:\n%s", rules)
			}
		})
	}
}

// An element that is deleted and added again in one transaction exists afterwards.
func TestKernelCollectionReleaseThenAdd(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	put := func(x *nft.Tx) error {
		x.Masquerade(owner, netip.PrefixFrom(ip4, 24))
		return nil
	}
	mustUpdate(t, table, put)
	var c nft.Collection
	ctx := c.Collect(t.Context(), owner, func(_ bool, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	err := table.Update(ctx, func(x *nft.Tx) error {
		x.Release(owner, nft.KindMasquerade)
		return put(x)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Commit(t.Context(), table)
	owned, err := table.Owned(owner)
	if err != nil || len(owned) != 1 {
		t.Errorf("got %v, %v", owned, err)
	}
}
