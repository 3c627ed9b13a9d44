package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// A session releases many attachments in one transaction. If one fails, it takes a few more, and
// the others are still released. Elements of another owner are kept.
func TestKernelSessionIsolatesFailure(t *testing.T) {
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
			verb := session.NewForMany().For(0, "", nil)
			defer verb.Close()
			odd := errors.New("made to fail")
			failed := map[int]error{}
			for i := range all {
				of := verb.For(i, attachment(i).Key(), nil).Leaving(func(err error) { failed[i] = err })
				table := open(t, ns, nft.WithSession(of))
				for _, kind := range []nft.Kind{nft.KindMasquerade, nft.KindFirewall} { // like the plugins of a chain
					err := table.Update(t.Context(), func(x *nft.Tx) error {
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
			verb.Commit(t.Context())
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
func TestKernelSessionReleaseThenAdd(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	put := func(x *nft.Tx) error {
		x.Masquerade(owner, netip.PrefixFrom(ip4, 24))
		return nil
	}
	mustUpdate(t, table, put)
	verb := session.New().For(0, owner.Key(), nil).Leaving(func(err error) { t.Error(err) })
	defer verb.Close()
	err := open(t, ns, nft.WithSession(verb)).Update(t.Context(), func(x *nft.Tx) error {
		x.Release(owner, nft.KindMasquerade)
		return put(x)
	})
	if err != nil {
		t.Fatal(err)
	}
	verb.Commit(t.Context())
	owned, err := table.Owned(owner)
	if err != nil || len(owned) != 1 {
		t.Errorf("got %v, %v", owned, err)
	}
}
