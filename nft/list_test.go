package nft_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Elements returns what identifies owners: addresses, host ports and guarded bridge ports.
func TestKernelElements(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	if all, err := table.Elements(); err != nil || len(all) != 0 {
		t.Errorf("without a table: %v, %v", all, err)
	}
	mustUpdate(t, table, everything)
	all, err := table.Elements()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		if e.OwnerKey() != e.Owner().Key() {
			t.Errorf("%s: the names of %s are not those of the key", &e, e.Owner())
		}
		text := fmt.Sprintf("%s %d %s", e.Owner(), e.Kind(), e.Addr())
		switch proto, port := e.Port(); {
		case e.MAC() != nil:
			text = fmt.Sprintf("%s %d %s %s", e.Owner(), e.Kind(), e.Link(), e.MAC())
		case proto != "":
			text += fmt.Sprintf(" %s/%d -> %s", proto, port, e.Target())
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
		of(owner, nft.KindMACGuard, "veth1 02:00:00:00:00:01"),
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if ports, err := table.Elements(nft.KindPortMap); err != nil || len(ports) != 4 {
		t.Errorf("of one kind: %v, %v", ports, err)
	}
}

// Elements read from one table can be put into another, with the chains to which they refer.
func TestKernelElementsCopied(t *testing.T) {
	from, ns := open(t, kerneltest.NS(t)), kerneltest.NS(t)
	to := open(t, ns)
	mustUpdate(t, from, everything)
	read := func(table *nft.Table) (all []nft.Element, texts []string) {
		all, err := table.Elements()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			texts = append(texts, fmt.Sprintf("%s of %s", &e, e.Owner()))
		}
		return all, texts
	}
	all, want := read(from)
	mustUpdate(t, to, func(x *nft.Tx) error {
		for _, e := range all {
			x.Put(e)
		}
		return nil
	})
	if _, got := read(to); len(got) == 0 || !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if err := from.Check(everything); err != nil {
		t.Errorf("the first table lacks something: %v", err)
	}
	mustUpdate(t, to, func(x *nft.Tx) error { x.Release(owner); return nil })
	if list := nfttest.Ruleset(t, ns); strings.Contains(list, "elements = ") {
		t.Errorf("after the release:\n%s", list)
	}
}
