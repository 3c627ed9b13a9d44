package rtnl_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// vethPair makes a veth pair in two namespaces, set up if requested.
func vethPair(t *testing.T, up bool) (host, cont *netns.NS, h, c *rtnl.Conn, a, b *rtnl.Link) {
	t.Helper()
	host, cont = kerneltest.NS(t), kerneltest.NS(t)
	h, c = kerneltest.Dial(t, host), kerneltest.Dial(t, cont)
	a = create(t, h, rtnl.LinkSpec{Name: "a", Up: up, Peer: &rtnl.LinkSpec{Name: "b", NS: cont}})
	b, err := c.Link("b")
	if err != nil {
		t.Fatal(err)
	}
	if up {
		if err := c.SetLink(b.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
			t.Fatal(err)
		}
	}
	return host, cont, h, c, a, b
}

// waitCarrier waits until a link has a carrier, which the kernel may detect late.
func waitCarrier(t *testing.T, c *rtnl.Conn, l *rtnl.Link) {
	t.Helper()
	if err := c.WaitUp(t.Context(), l.Index); err != nil {
		t.Fatal(err)
	}
}

func TestKernelAddr(t *testing.T) {
	_, _, c, _, l, _ := vethPair(t, false)
	other, err := c.CreateLink(rtnl.LinkSpec{Name: "other", Kind: rtnl.Bridge{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddAddr(other.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.3.0.1/24")}); err != nil {
		t.Fatal(err)
	}
	tests := map[string]rtnl.Addr{
		"IPv4":     {Prefix: netip.MustParsePrefix("10.1.0.2/24"), Permanent: true},
		"IPv4 /31": {Prefix: netip.MustParsePrefix("10.1.1.2/31"), Permanent: true},
		"IPv4 /32": {Prefix: netip.MustParsePrefix("10.1.2.2/32"), Permanent: true},
		"IPv4 with peer": {Prefix: netip.MustParsePrefix("10.1.3.2/32"), Peer: netip.MustParseAddr("10.1.3.9"),
			Permanent: true},
		"IPv6 no DAD": {Prefix: netip.MustParsePrefix("2001:db8::2/64"), NoDAD: true, Permanent: true},
		"IPv6":        {Prefix: netip.MustParsePrefix("2001:db8:1::2/64"), Tentative: true, Permanent: true},
	}
	for name, a := range tests {
		t.Run(name, func(t *testing.T) {
			if err := c.AddAddr(l.Index, a); err != nil {
				t.Fatal(err)
			}
			wantErr(t, c.AddAddr(l.Index, a), os.ErrExist)
			got, err := c.Addrs(l.Index)
			if err != nil || len(got) != 1 || got[0] != a {
				t.Errorf("got %+v, %v; want %+v alone", got, err, a)
			}
			if err := c.Do(rtnl.DropAddr(l.Index, a)); err != nil {
				t.Error(err)
			}
			wantErr(t, c.Do(rtnl.DropAddr(l.Index, a)), os.ErrNotExist)
		})
	}
	for name, a := range map[string]rtnl.Addr{
		"zero":   {},
		"4 in 6": {Prefix: netip.MustParsePrefix("::ffff:10.0.0.1/120")},
	} {
		t.Run(name, func(t *testing.T) { wantErr(t, c.AddAddr(l.Index, a), unix.EINVAL) })
	}
	_, err = c.Addrs(4711)
	wantErr(t, err, os.ErrNotExist)
}

// WaitAddrs returns when duplicate address detection has ended. That takes about a second, and
// starts when there is a carrier.
func TestKernelWaitAddrs(t *testing.T) {
	t.Parallel()
	_, _, h, c, a, b := vethPair(t, false)
	addr := rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64")}
	if err := h.Do(rtnl.ChangeLink(a.Index, rtnl.LinkChange{Up: new(true)}), rtnl.NewAddr(a.Index, addr)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	wantErr(t, h.WaitAddrs(short, a.Index), context.DeadlineExceeded)
	if err := c.SetLink(b.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitAddrs(t.Context(), a.Index); err != nil {
		t.Fatal(err)
	}
	addrs, err := h.Addrs(a.Index)
	if err != nil || len(addrs) < 2 { // with the link-local address
		t.Fatalf("got %+v, %v", addrs, err)
	}
	for _, a := range addrs {
		if a.Tentative {
			t.Errorf("%s is tentative", a.Prefix)
		}
	}
}

func TestKernelDuplicateAddress(t *testing.T) {
	t.Parallel()
	_, cont, h, c, a, b := vethPair(t, true)
	prefix := netip.MustParsePrefix("2001:db8::2/64")
	if err := c.AddAddr(b.Index, rtnl.Addr{Prefix: prefix, NoDAD: true}); err != nil {
		t.Fatal(err)
	}
	waitCarrier(t, c, b)
	kerneltest.Solicited(t, cont, prefix.Addr(), 1)
	if err := h.AddAddr(a.Index, rtnl.Addr{Prefix: prefix}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, h.WaitAddrs(t.Context(), a.Index), rtnl.ErrDuplicateAddress)
}

// Without a carrier an address stays tentative. The context ends the wait, and the socket is usable
// afterwards.
func TestKernelWaitAddrsCancelled(t *testing.T) {
	t.Parallel()
	_, _, h, _, a, _ := vethPair(t, false)
	if err := h.AddAddr(a.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64")}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	wantErr(t, h.WaitAddrs(ctx, a.Index), context.Canceled)
	if _, err := h.LinkAt(a.Index); err != nil {
		t.Errorf("the socket afterwards: %v", err)
	}
}

// A notification of the kernel ends the wait.
func TestKernelListen(t *testing.T) {
	_, _, h, _, a, _ := vethPair(t, true)
	events, err := rtnl.Listen(h, unix.RTMGRP_IPV6_IFADDR)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	if err := h.AddAddr(a.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::2/64"), NoDAD: true}); err != nil {
		t.Fatal(err)
	}
	if err := events.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestKernelWaitUp(t *testing.T) {
	host, cont := kerneltest.NS(t), kerneltest.NS(t)
	h, c := kerneltest.Dial(t, host), kerneltest.Dial(t, cont)
	br := create(t, h, rtnl.LinkSpec{Name: "br", Kind: rtnl.Bridge{}, Up: true})
	ctx := t.Context()
	for name, master := range map[string]uint32{"port": br.Index, "alone": 0} {
		link := create(t, h, rtnl.LinkSpec{Name: name, Up: true, Master: master, Peer: &rtnl.LinkSpec{Name: name, NS: cont}})
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		wantErr(t, h.WaitUp(short, link.Index), context.DeadlineExceeded)
		cancel()
		peer, err := c.Link(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetLink(peer.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
			t.Fatal(err)
		}
		if err := h.WaitUp(ctx, link.Index); err != nil {
			t.Fatal(err)
		}
		got, err := h.LinkAt(link.Index)
		if err != nil || !got.OperUp || master != 0 && got.PortState != rtnl.PortForwarding {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	wantErr(t, h.WaitUp(ctx, 4711), os.ErrNotExist)
}

// LinksWith returns the links with an address, and no others.
func TestKernelLinksWith(t *testing.T) {
	_, _, c, _, l, _ := vethPair(t, false)
	links, err := c.LinksWith(l.MAC)
	if err != nil || len(links) != 1 || links[0].Name != l.Name {
		t.Errorf("got %v, %v, want %s alone", links, err, l.Name)
	}
	if links, err := c.LinksWith([]byte("nothing has this")); err != nil || len(links) != 0 {
		t.Errorf("got %v, %v, want none", links, err)
	}
}

// AllAddrs returns the addresses of all links by index.
func TestKernelAllAddrs(t *testing.T) {
	_, _, c, _, l, _ := vethPair(t, false)
	other, err := c.CreateLink(rtnl.LinkSpec{Name: "other", Kind: rtnl.Bridge{}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint32]string{l.Index: "10.1.0.2/24", other.Index: "fd00::3/64"}
	for index, prefix := range want {
		if err := c.AddAddr(index, rtnl.Addr{Prefix: netip.MustParsePrefix(prefix)}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := c.AllAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for index, prefix := range want {
		if len(all[index]) != 1 || all[index][0].Prefix.String() != prefix {
			t.Errorf("link #%d has %v, want %s", index, all[index], prefix)
		}
	}
}
