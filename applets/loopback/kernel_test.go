package loopback_test

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A fixture is a container whose lo is down.
type fixture struct {
	*applettest.Host
	cont applettest.Container
	c    *rtnl.Conn // in the container
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	h := applettest.NewHost(t)
	c := h.Container("ctr1")
	kerneltest.LoDown(t, c.NS)
	return &fixture{h, c, kerneltest.Dial(t, c.NS)}
}

func (b *fixture) verb(verb spec.Verb) (code int, out string) {
	b.Helper()
	return b.Call(verb, "loopback", `{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}`, b.cont)
}

func loIsUp(t *testing.T, c *rtnl.Conn) bool {
	t.Helper()
	lo, err := c.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	return lo.Up
}

// DEL keeps lo up while the namespace has another interface.
func TestKernelLoopbackDelKeepsLoForOthers(t *testing.T) {
	b := newFixture(t)
	c := b.c
	if code, out := b.verb(spec.Add); code != 0 {
		t.Fatal(out)
	}
	if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Up: true, Peer: &rtnl.LinkSpec{Name: "peer"}}); err != nil {
		t.Fatal(err)
	}
	if code, out := b.verb(spec.Del); code != 0 || !loIsUp(t, c) {
		t.Errorf("with eth0: got code %d, lo up %t: %s", code, loIsUp(t, c), out)
	}
	if err := c.DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	if code, out := b.verb(spec.Del); code != 0 || loIsUp(t, c) {
		t.Errorf("alone: got code %d, lo up %t: %s", code, loIsUp(t, c), out)
	}
}

// ADD rejects an address that is not a loopback address, before it changes lo.
func TestKernelLoopbackNonLoopbackAddress(t *testing.T) {
	b := newFixture(t)
	c := b.c
	lo, err := c.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddAddr(lo.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.9.9.9/32")}); err != nil {
		t.Fatal(err)
	}
	code, out := b.verb(spec.Add)
	if code != spec.CodeNetNS || !strings.Contains(out, "non-loopback address: 10.9.9.9/32") {
		t.Errorf("got code %d, %s", code, out)
	}
	if loIsUp(t, c) {
		t.Error("lo is up after an error")
	}
}

// containerd adds loopback and the networks of the pod concurrently.
func TestKernelLoopbackConcurrentAdds(t *testing.T) {
	b := newFixture(t)
	c := b.c
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if code, out := b.verb(spec.Add); code != 0 {
				t.Error(out)
			}
		})
	}
	wg.Go(func() {
		if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Up: true, Peer: &rtnl.LinkSpec{Name: "peer"}}); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if !loIsUp(t, c) {
		t.Error("lo is down")
	}
}
