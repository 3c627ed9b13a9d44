package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
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

// knownOfAll names what everything puts.
func knownOfAll(o spec.Attachment) nft.Known {
	host := mapping(unix.IPPROTO_UDP, 53, one4)
	host.HostIP = netip.MustParseAddr("10.0.0.1")
	return slices.Concat(knownAddresses(o).IfAny(), nft.KnownGuard("veth1", net.HardwareAddr{2, 0, 0, 0, 0, 1}), nft.KnownAdverts("veth1"),
		nft.KnownPort(mapping(unix.IPPROTO_TCP, 8080, one4)), nft.KnownPort(host), nft.KnownPort(mapping(unix.IPPROTO_TCP, 8080, one6)),
		nft.KnownPort(mapping(unix.IPPROTO_SCTP, 99, one6)))
}

var allKinds = append([]nft.Kind{nft.KindPortMap, nft.KindMACGuard, nft.KindAdverts}, addressKinds...)

// ReleaseKnown leaves as much as Release: what it does not name is found where one of the expected elements is missing.
// It leaves what another attachment owns, and kinds that are not given.
func TestKernelReleaseKnown(t *testing.T) {
	for name, tt := range map[string]struct {
		known nft.Known
		left  string // of everything
	}{
		"all":                       {knownOfAll(owner), ""},
		"another MAC address":       {append(knownOfAll(owner), nft.KnownGuard("veth1", net.HardwareAddr{2, 0, 0, 0, 0, 9})...), ""},
		"another address":           {append(knownOfAll(owner), nft.KnownMasquerade(netip.MustParseAddr("10.9.0.99"))...), ""},
		"nothing":                   {nft.Known{}, "everything"},
		"of another attachment":     {knownOfAll(other), "everything"},
		"another address, not sure": {nft.KnownMasquerade(netip.MustParseAddr("10.9.0.99")).IfAny(), "everything"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			table := open(t, ns)
			mustUpdate(t, table, func(x *nft.Tx) error { return x.PortMap(other, mapping(unix.IPPROTO_TCP, 1, two4)) })
			mustUpdate(t, table, func(x *nft.Tx) error { x.DropAdverts(other, "veth2"); return allow(x, other) })
			mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other, nft.KindFirewall); return nil })
			before := nfttest.Ruleset(t, ns)
			mustUpdate(t, table, everything)
			if tt.left != "" {
				before = nfttest.Ruleset(t, ns)
			}
			o := owner
			if name == "of another attachment" {
				o = other
				mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other); return nil })
				before = nfttest.Ruleset(t, ns)
			}
			mustUpdate(t, table, func(x *nft.Tx) error { x.ReleaseKnown(o, tt.known); return nil })
			mustUpdate(t, table, func(x *nft.Tx) error { x.ReleaseKnown(o, tt.known, allKinds...); return nil })
			if got := nfttest.Ruleset(t, ns); got != before {
				t.Errorf("left:\n%s", kerneltest.Diff(before, got))
			}
		})
	}
}

// The first update after an upgrade, an ADD or a DEL, makes the base ruleset of this version in one transaction. It deletes
// the sets that earlier versions had, and leaves the elements.
func TestKernelUpgradeOfSets(t *testing.T) {
	earlier, err := os.ReadFile("testdata/base4.txt")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/everything.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours, _, _ := strings.Cut(string(golden), "table ip filter {")
	for name, tt := range map[string]struct {
		update func(*nft.Tx) error
		want   string
	}{
		"ADD again": {everything, string(golden)},
		"DEL of another": {func(x *nft.Tx) error {
			x.ReleaseKnown(other, knownOfAll(other), allKinds...)
			return nil
		}, ours},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.NS(t)
			table := open(t, ns)
			nfttest.Load(t, ns, string(earlier)+`
				add element inet cnibox masq4_next { "ab" . 10.9.0.11 comment "`+other.Label(100)+`" : jump out-10.9.0.0-24 }
				add element inet cnibox zone6_next { "ab" . fd00:9::11 comment "`+other.Label(100)+`" }`)
			work := fault.Count(func() { mustUpdate(t, table, tt.update) })
			if got := nfttest.Ruleset(t, ns); got != tt.want {
				t.Errorf("%s", kerneltest.Diff(tt.want, got))
			}
			if work[fault.Transactions] != 1 {
				t.Errorf("%d transactions", work[fault.Transactions])
			}
			if err := table.Check(everything); name == "ADD again" && err != nil {
				t.Errorf("CHECK: %v", err)
			}
			mustUpdate(t, table, func(x *nft.Tx) error { x.ReleaseKnown(owner, knownOfAll(owner), allKinds...); return nil })
			if got := nfttest.Ruleset(t, ns); strings.Contains(got, "elements = ") {
				t.Errorf("after DEL:\n%s", got)
			}
		})
	}
}
