package dhcp_test

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/rtnl"
)

// setMAC changes the link layer address of a link.
func setMAC(t *testing.T, ns *netns.NS, link string, addr net.HardwareAddr) {
	t.Helper()
	c := kerneltest.Dial(t, ns)
	l, err := c.Link(link)
	if err == nil {
		err = c.SetLink(l.Index, rtnl.LinkChange{MAC: addr})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A later plugin (tuning) changes the interface's MAC address, and the server's has changed, too:
// the lease is renewed, and its RELEASE arrives.
func TestKernelChangedMACs(t *testing.T) {
	t.Parallel()
	b, s, h := newBound(t)
	setMAC(t, b.Container, "eth0", net.HardwareAddr{2, 0, 0, 0, 9, 1})
	setMAC(t, b.Server, "srv0", net.HardwareAddr{2, 0, 0, 0, 9, 2})
	before, asked := h.Leases()[0].Start, s.Count(dhcpv4.MessageTypeDiscover)
	h.Keep()
	kerneltest.Until(b.T, "a renewal", func() bool { return h.Leases()[0].Start > before })
	if n := s.Count(dhcpv4.MessageTypeDiscover); n != asked || !b.Kept() {
		t.Errorf("the lease was begun anew: %d DISCOVERs", n-asked)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	kerneltest.Until(b.T, "the RELEASE", func() bool { return len(s.Leased()) == 0 })
}

// The daemon is killed when a changed address is recorded but not yet set on the interface: the
// next daemon sets it and deletes the old one.
func TestKernelKilledBeforeChange(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	b, s, h := newBound(t)
	s.Move()
	s.Life(2 * lasting)
	killed := make(chan bool)
	b.saved = func(*dhcp.State) {
		close(killed)
		runtime.Goexit()
	}
	h.Keep()
	<-killed
	h.Stop()
	if got := b.addresses(); !slices.Equal(got, []string{"10.9.0.10/24"}) {
		t.Fatalf("changed before it is on record: %v", got)
	}
	b.saved = nil
	h = dhcp.Resume(*b.state, b.Settings, b.store)
	h.Keep()
	defer h.Stop()
	kerneltest.Until(b.T, "the new address alone", func() bool { return slices.Equal(b.addresses(), []string{"10.9.0.100/24"}) })
	kerneltest.Until(b.T, "a record of it", func() bool { return h.Leases()[0].On == nil })
}

// If a new gateway is not reachable yet, the old one stays, and the change is retried without
// asking the server again.
func TestKernelUnreachableGateway(t *testing.T) {
	t.Parallel()
	b, s, h := newBound(t)
	s.Life(2 * lasting)
	s.With(dhcpv4.OptRouter(net.IPv4(10, 99, 0, 1)))
	h.Keep()
	kerneltest.Until(b.T, "a try", func() bool { l := h.Leases()[0]; return l.Life == uint32(2*lasting/time.Second) && l.On != nil })
	kerneltest.Until(b.T, "the old gateway", func() bool { return b.gateway() == "10.9.0.1" })
	asked := len(s.Seen())
	if err := b.cont.AddAddr(b.link().Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.99.0.2/24")}); err != nil {
		t.Fatal(err)
	}
	kerneltest.Until(b.T, "the new gateway", func() bool { return b.gateway() == "10.99.0.1" })
	if n := len(s.Seen()) - asked; n != 0 {
		t.Errorf("the server was asked %d times for it", n)
	}
}
