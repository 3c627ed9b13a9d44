package kerneltest_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// The path of a namespace is valid in a child process too.
func TestKernelNSPath(t *testing.T) {
	ns := kerneltest.NS(t)
	path := kerneltest.NSPath(t, ns)
	again, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if same, err := ns.Same(again); !same || err != nil {
		t.Errorf("the path leads elsewhere: same %t, error %v", same, err)
	}
	out, err := exec.Command("stat", "-L", "-f", "-c", "%T", path).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "nsfs" {
		t.Errorf("a child process sees %q, %v; want nsfs", out, err)
	}
}

// A snapshot shows everything that a verb may leave, and is equal without leftovers.
func TestKernelSnapshot(t *testing.T) {
	ns := kerneltest.NS(t)
	kerneltest.LoUp(t, ns)
	c := kerneltest.Dial(t, ns)
	d, err := c.CreateLink(rtnl.LinkSpec{Name: "old0", Kind: rtnl.Bridge{}, Up: true})
	if err != nil {
		t.Fatal(err)
	}
	before := kerneltest.Snapshot(t, ns)
	addr := rtnl.Addr{Prefix: netip.MustParsePrefix("10.9.0.1/24")}
	addr6 := rtnl.Addr{Prefix: netip.MustParsePrefix("2001:db8::1/64"), NoDAD: true}
	route := rtnl.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: d.Index}
	rule := rtnl.Rule{Src: netip.MustParsePrefix("10.9.0.0/24"), Table: 100, Priority: 900}
	alias, none := "leftover", ""
	leftovers := map[string][2]rtnl.Op{
		"address":      {rtnl.NewAddr(d.Index, addr), rtnl.DropAddr(d.Index, addr)},
		"IPv6 address": {rtnl.NewAddr(d.Index, addr6), rtnl.DropAddr(d.Index, addr6)},
		"route":        {rtnl.NewRoute(route), rtnl.DropRoute(route)},
		"rule":         {rtnl.NewRule(rule), rtnl.DropRule(rule)},
		"alias": {
			rtnl.ChangeLink(d.Index, rtnl.LinkChange{Alias: &alias}),
			rtnl.ChangeLink(d.Index, rtnl.LinkChange{Alias: &none}),
		},
	}
	for name, op := range leftovers {
		t.Run(name, func(t *testing.T) {
			if err := c.Do(op[0]); err != nil {
				t.Fatal(err)
			}
			if got := kerneltest.Snapshot(t, ns); got == before {
				t.Error("the snapshot does not show it")
			}
			if err := c.Do(op[1]); err != nil {
				t.Fatal(err)
			}
			if got := kerneltest.Snapshot(t, ns); got != before {
				t.Errorf("after it is gone: got\n%s\nwant\n%s", got, before)
			}
		})
	}
	if err := ns.SetSysctl("net/ipv4/conf/old0/route_localnet", "1"); err != nil {
		t.Fatal(err)
	}
	if kerneltest.Snapshot(t, ns) == before {
		t.Error("the snapshot does not show a setting")
	}
}

// Links that are deleted meanwhile do not change a snapshot, as those whose peers were in a
// namespace that has ended.
func TestKernelSnapshotDuringChanges(t *testing.T) {
	ns := kerneltest.NS(t)
	before := kerneltest.Snapshot(t, ns)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := rtnl.Dial(ns)
		for err == nil {
			if err = c.AddLink(rtnl.LinkSpec{Name: "a", Peer: &rtnl.LinkSpec{Name: "b"}}); err == nil {
				err = c.DelLink("a")
			}
			select {
			case <-stop:
				stopped <- c.Close()
				return
			default:
			}
		}
		stopped <- err
	}()
	for range 50 {
		kerneltest.Snapshot(t, ns)
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if after := kerneltest.Snapshot(t, ns); after != before {
		t.Errorf("it is not as before:\n%s", kerneltest.Diff(before, after))
	}
}

// After Delete the peers of the links of a namespace are gone as well.
func TestKernelDelete(t *testing.T) {
	host := kerneltest.NS(t)
	for range 20 {
		ns := kerneltest.NS(t)
		path := kerneltest.NSPath(t, ns)
		kerneltest.AddLink(t, host, rtnl.LinkSpec{Name: "host0", Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns}})
		kerneltest.Delete(t, func() error { return netns.Unbind(path) }, ns)
		if links := kerneltest.Links(t, host); len(links) != 1 {
			t.Fatalf("there are %+v", links)
		}
	}
}

// A link is up, or down, for the kernel as soon as the fixture returns.
func TestKernelWaitUp(t *testing.T) {
	a, b := kerneltest.NS(t), kerneltest.NS(t)
	kerneltest.AddLink(t, a, rtnl.LinkSpec{Name: "a0", Up: true, Peer: &rtnl.LinkSpec{Name: "b0", NS: b}})
	c := kerneltest.Dial(t, a)
	for range 20 {
		for _, up := range []bool{true, false} {
			kerneltest.Brief(t, b, func(c *rtnl.Conn) error {
				return c.SetLink(kerneltest.Link(t, c, "b0").Index, rtnl.LinkChange{Up: &up})
			})
			if up {
				kerneltest.WaitUp(t, a, "a0")
			} else {
				kerneltest.WaitDown(t, a, "a0")
			}
			if got := kerneltest.Link(t, c, "a0").OperUp; got != up {
				t.Fatalf("the peer is up: %t, the link: %t", up, got)
			}
		}
	}
}
