package nft_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
)

// Release deletes everything that several updates have added for the owner, in any number, except
// what another attachment now owns. After both owners are released, no set has elements.
func TestKernelReleaseDeletesAllOfOwner(t *testing.T) {
	ports := func(from, to uint16) func(*nft.Tx) error {
		return func(x *nft.Tx) (err error) {
			for p := from; p <= to; p++ {
				err = errors.Join(err, x.PortMap(owner, mapping(unix.IPPROTO_TCP, p, one4)))
			}
			return err
		}
	}
	masquerade := func(x *nft.Tx) error {
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		return nil
	}
	for name, updates := range map[string][]func(*nft.Tx) error{
		"once":                     {ports(8080, 8081)},
		"the same again":           {ports(8080, 8081), ports(8080, 8081), masquerade},
		"more of another call":     {ports(8080, 8081), ports(8082, 8083), ports(8083, 8084)},
		"many":                     {ports(8080, 8180), masquerade},
		"many after some":          {ports(8080, 8081), ports(8082, 8180)},
		"some after many":          {ports(8082, 8180), ports(8080, 8081)},
		"released and added again": {ports(8080, 8180), func(x *nft.Tx) error { x.Release(owner, nft.KindPortMap); return ports(8080, 8081)(x) }},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			table := open(t, ns)
			for _, u := range updates {
				mustUpdate(t, table, u)
			}
			mustUpdate(t, table, func(x *nft.Tx) error {
				x.Masquerade(other, netip.MustParsePrefix(one4+"/24")) // in the same network
				return nil
			})
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
			list := nfttest.Ruleset(t, ns)
			if strings.Contains(list, owner.Key()) || !strings.Contains(list, one4+` comment "`+other.Key()) {
				t.Errorf("after the release:\n%s", list)
			}
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other); return nil })
			if list := nfttest.Ruleset(t, ns); strings.Contains(list, "elements = ") {
				t.Errorf("after both:\n%s", list)
			}
		})
	}
}
