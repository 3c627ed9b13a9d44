package rtnl_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// An endedContext is a context that has ended. The awaited event occurs when its error is read.
type endedContext struct {
	context.Context
	occur func()
}

func (l endedContext) Err() error {
	l.occur()
	return l.Context.Err()
}

// An event that occurs before the end of the context is detected, even if both occur while the
// process is not running.
func TestKernelWaitChecksAfterTimeout(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	t.Run("WaitAddrs", func(t *testing.T) {
		_, _, h, _, a, _ := vethPair(t, false) // an address without a carrier stays tentative
		addr := rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64")}
		if err := h.AddAddr(a.Index, addr); err != nil {
			t.Fatal(err)
		}
		if err := h.WaitAddrs(endedContext{over, func() { h.Do(rtnl.DropAddr(a.Index, addr)) }}, a.Index); err != nil {
			t.Error(err)
		}
	})
	t.Run("WaitLink", func(t *testing.T) {
		h := kerneltest.Dial(t, kerneltest.NS(t))
		fits := func(l *rtnl.Link) bool { return l.Name == "a" }
		occur := func() { h.AddLink(rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b"}}) }
		if _, err := h.WaitLink(endedContext{over, occur}, fits); err != nil {
			t.Error(err)
		}
	})
	t.Run("WaitUp", func(t *testing.T) {
		_, _, h, c, a, b := vethPair(t, false)
		if err := h.SetLink(a.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
			t.Fatal(err)
		}
		occur := func() {
			if err := c.SetLink(b.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
				t.Error(err)
			}
			if err := h.WaitUp(context.Background(), a.Index); err != nil {
				t.Error(err)
			}
		}
		if err := h.WaitUp(endedContext{over, occur}, a.Index); err != nil {
			t.Error(err)
		}
	})
}
