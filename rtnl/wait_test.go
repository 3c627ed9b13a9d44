package rtnl_test

import (
	"context"
	"net/netip"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

// A late is a context that has ended, and whose end is noticed late: meanwhile the awaited event
// has occurred.
type late struct {
	context.Context
	come func()
}

func (l late) Err() error {
	l.come()
	return l.Context.Err()
}

// The wait sees an event that occurred before the end of its context while the process was not
// running.
func TestKernelWaitLooksOnceMore(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	t.Run("WaitAddrs", func(t *testing.T) {
		_, _, h, _, a, _ := pair(t, false) // an address without a carrier stays tentative
		addr := rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64")}
		if err := h.AddAddr(a.Index, addr); err != nil {
			t.Fatal(err)
		}
		if err := h.WaitAddrs(late{over, func() { h.Do(rtnl.DropAddr(a.Index, addr)) }}, a.Index); err != nil {
			t.Error(err)
		}
	})
	t.Run("WaitLink", func(t *testing.T) {
		h := kerneltest.Dial(t, kerneltest.NS(t))
		fits := func(l *rtnl.Link) bool { return l.Name == "a" }
		come := func() { h.AddLink(rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b"}}) }
		if _, err := h.WaitLink(late{over, come}, fits); err != nil {
			t.Error(err)
		}
	})
	t.Run("WaitUp", func(t *testing.T) {
		_, _, h, c, a, b := pair(t, false)
		if err := h.SetLink(a.Index, rtnl.LinkChange{Up: ptr(true)}); err != nil {
			t.Fatal(err)
		}
		come := func() {
			if err := c.SetLink(b.Index, rtnl.LinkChange{Up: ptr(true)}); err != nil {
				t.Error(err)
			}
			if err := h.WaitUp(context.Background(), a.Index); err != nil {
				t.Error(err)
			}
		}
		if err := h.WaitUp(late{over, come}, a.Index); err != nil {
			t.Error(err)
		}
	})
}
