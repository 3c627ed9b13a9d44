package nft_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// reload does what cni-exec reload does with the rule set: it refills the chains of the base ruleset.
func reload(t *testing.T, ns *netns.NS, fn func(x *nft.Tx) error) {
	t.Helper()
	s := session.NewForMany().For(0, owner.Key(), nil).Leaving(func(err error) { t.Error(err) })
	defer s.Close()
	nft.Rebuild(s)
	if err := open(t, ns, nft.WithSession(s)).Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
	s.Commit(t.Context())
}

// The watch reports each transaction that deletes what plugins made, and says whether a verb may
// have done so. It reports neither the refill of a reload nor what is made again in the same
// transaction, nor deletions of other objects, nor anything that is added.
func TestKernelWatchLoss(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	other := spec.Attachment{Network: owner.Network, ContainerID: "other", IfName: owner.IfName}
	release := func(x *nft.Tx) error { x.Release(owner); return nil }
	load := func(rules string) func() { return func() { nfttest.Load(t, ns, rules) } }
	update := func(fn func(*nft.Tx) error) func() { return func() { mustUpdate(t, table, fn) } }
	mustUpdate(t, table, everything)
	w, err := nft.WatchRules(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	none := []func(){
		func() { reload(t, ns, everything) },
		load("add table ip other; add chain ip other c; add rule ip other c accept; delete table ip other"),
		load("add table inet filter; add chain inet filter FORWARD; delete table inet filter"),
		load("add rule ip filter FORWARD counter comment other; flush chain ip filter CNI-ADMIN"),
	}
	for _, tt := range []struct {
		what  string
		do    func()
		base  bool
		parts bool
	}{
		{"a release", update(release), false, true},
		{"a reload after it, and an element", func() { reload(t, ns, everything); load("flush map inet cnibox masq4")() }, false, true},
		{"rules", func() { reload(t, ns, everything); load("flush chain inet cnibox postrouting")() }, true, false},
		{"rules of CNI-FORWARD", func() { reload(t, ns, everything); load("flush chain ip filter CNI-FORWARD")() }, true, true},
		{"the jump to it", func() { reload(t, ns, everything); load("flush chain ip filter FORWARD")() }, true, false},
		{"a table", func() { reload(t, ns, everything); load("delete table inet cnibox")() }, true, false},
		{"all", func() { reload(t, ns, everything); load("flush ruleset")() }, true, false},
	} {
		reload(t, ns, everything)
		for _, do := range none {
			do()
		}
		tt.do()
		loss, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if loss.Base != tt.base || len(loss.Parts) > 0 != tt.parts && !loss.Base {
			t.Errorf("%s: base %t, %d parts", tt.what, loss.Base, len(loss.Parts))
		}
		missing, err := table.Missing(loss.Parts)
		if err != nil || len(missing) != len(loss.Parts) {
			t.Errorf("%s: %d of %d parts are missing, %v", tt.what, len(missing), len(loss.Parts), err)
		}
		addrs := []netip.Addr{ip4, ip6}
		for _, p := range loss.Parts {
			if !p.Of(owner, addrs) || p.Of(other, nil) || !p.MayBeIn([]byte(`"`+owner.ContainerID+`" "`+ip4.String()+`/24" `+ip6.String())) {
				t.Errorf("%s: a part is not the owner's, or another's: %+v", tt.what, p)
			}
		}
		reload(t, ns, everything)
		if missing, err = table.Missing(loss.Parts); err != nil || len(missing) > 0 {
			t.Errorf("%s: %d of %d parts are missing after a reload, %v", tt.what, len(missing), len(loss.Parts), err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after the last one: %v", err)
	}
}
