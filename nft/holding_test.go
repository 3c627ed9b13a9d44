package nft_test

import (
	"fmt"
	"slices"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/nft"
	"cnibox/spec"
)

// Holdings has what is of use to find an owner: addresses, host ports and guarded ports of bridges,
// with the next owners.
func TestKernelHoldings(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	if all, err := table.Holdings(); err != nil || len(all) != 0 {
		t.Errorf("without a table: %v, %v", all, err)
	}
	change(t, table, everything)
	second := spec.Attachment{Network: "net2", ContainerID: "c2", IfName: "eth0"}
	change(t, table, func(x *nft.Tx) error { return allow(x, second) })
	all, err := table.Holdings()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range all {
		if h.Key != h.Owner.Key() {
			t.Errorf("%+v: the names are not those of the key", h)
		}
		text := fmt.Sprintf("%s %d %s", h.Owner, h.Kind, h.Addr)
		switch h.Kind {
		case nft.KindMACGuard:
			text = fmt.Sprintf("%s %d %s %s", h.Owner, h.Kind, h.Link, h.MAC)
		case nft.KindPortMap:
			text += fmt.Sprintf(" %s/%d -> %s", h.Proto, h.Port, h.Target)
		}
		got = append(got, text)
	}
	of := func(o spec.Attachment, kind nft.Kind, rest string) string {
		return fmt.Sprintf("%s %d %s", o, kind, rest)
	}
	want := []string{
		of(owner, nft.KindMasquerade, one4), of(owner, nft.KindMasquerade, one6), of(owner, nft.KindFirewall, one4), of(owner, nft.KindZone, one6),
		of(owner, nft.KindPortMap, "invalid IP tcp/8080 -> "+one4+":80"), of(owner, nft.KindPortMap, "10.0.0.1 udp/53 -> "+one4+":80"),
		of(owner, nft.KindPortMap, "invalid IP tcp/8080 -> ["+one6+"]:80"), of(owner, nft.KindPortMap, "invalid IP sctp/99 -> ["+one6+"]:80"),
		of(owner, nft.KindMACGuard, "veth1 02:00:00:00:00:01"), of(second, nft.KindFirewall, one4), of(second, nft.KindFirewall, one6),
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if ports, err := table.Holdings(nft.KindPortMap); err != nil || len(ports) != 4 {
		t.Errorf("of one kind: %v, %v", ports, err)
	}
}
