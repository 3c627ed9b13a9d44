package dhcp_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/dhcptest"
)

// A store holds the state in memory.
type store struct {
	mu    sync.Mutex
	state *dhcp.State // nil: dropped, or never saved
	fail  error
	saved func(*dhcp.State) // called after each Save; nil: nothing
}

func (s *store) Save(state *dhcp.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	saved := *state
	s.state = &saved
	if s.saved != nil {
		s.saved(&saved)
	}
	return nil
}

func (s *store) Kept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state != nil
}

func (s *store) Drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = nil
	return nil
}

// A bed is the client's side of a link to a server.
type bed struct {
	*testing.T
	dhcptest.Wire
	dhcp.Config
	dhcp.Settings
	*store
	cont *rtnl.Conn
}

func newBed(t *testing.T) *bed {
	t.Helper()
	w := dhcptest.NewWire(t)
	return &bed{
		T: t, Wire: w, store: &store{}, cont: kerneltest.Dial(t, w.Container),
		Config: dhcp.Config{
			NetNS: kerneltest.NSPath(t, w.Container), IfName: "eth0", V4: true,
			ClientID: []byte("\x00ctr/net/eth0"), DUID: append([]byte{0, 4}, make([]byte, 16)...), Request: []byte{1, 121, 3},
		},
		Settings: dhcp.Settings{
			Timeout: kerneltest.Timeout(time.Minute), Pause: time.Second, AcquireTimeout: kerneltest.Timeout(3 * time.Minute),
			Log: func(line string) { t.Log(line) },
		},
	}
}

// acquire gets a lease, or fails the test.
func (b *bed) acquire() *dhcp.Holder {
	b.Helper()
	h, err := dhcp.Acquire(b.Context(), b.Config, b.Settings, b.store)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(h.Stop)
	return h
}

// configure sets the address and routes of a lease, as the interface plugin does.
func (b *bed) configure(h *dhcp.Holder) {
	b.Helper()
	l := b.link()
	for _, lease := range h.Leases() {
		ops := []rtnl.Op{rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: lease.Address})}
		for _, r := range lease.Routes {
			ops = append(ops, rtnl.NewRoute(rtnl.Route{Dst: r.Dst, GW: r.GW, Link: l.Index}))
		}
		if err := b.cont.Do(ops...); err != nil {
			b.Fatal(err)
		}
	}
}

// newBound makes a bed whose interface has the address of a first lease, and its server, which
// sends a short T1.
func newBound(t *testing.T) (*bed, *dhcptest.Server4, *dhcp.Holder) {
	t.Helper()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	s.Times(soon, later, lasting)
	h := b.acquire()
	b.configure(h)
	return b, s, h
}

func (b *bed) link() *rtnl.Link {
	b.Helper()
	l, err := b.cont.Link("eth0")
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// addresses returns the addresses of eth0 without the link-local one.
func (b *bed) addresses() (list []string) {
	b.Helper()
	addrs, err := b.cont.Addrs(b.link().Index)
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			list = append(list, a.Prefix.String())
		}
	}
	return list
}

// gateway returns the gateway of the default route.
func (b *bed) gateway() string {
	b.Helper()
	routes, err := b.cont.Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix("0.0.0.0/0")})
	if err != nil {
		b.Fatal(err)
	}
	if len(routes) == 0 {
		return ""
	}
	return routes[0].GW.String()
}

// refused checks that no lease is acquired, and the reason. On a busy machine the timeout may end
// before a reply was read: then it is retried with a longer one.
func (b *bed) refused(reason string) {
	b.Helper()
	for end := time.Now().Add(kerneltest.Timeout(time.Minute)); ; b.AcquireTimeout *= 2 {
		_, err := dhcp.Acquire(b.Context(), b.Config, b.Settings, b.store)
		if err == nil {
			b.Fatalf("got a lease, want %q", reason)
		}
		if b.Kept() {
			b.Error("a state stays")
		}
		if strings.Contains(err.Error(), reason) && strings.Contains(err.Error(), "no more tries") {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("got %v, want %q", err, reason)
		}
	}
}

// soon and later are T1 and T2 of a lease that is renewed at once and does not expire during the
// test; lasting is its length.
const (
	soon    = time.Second
	later   = 5 * time.Minute
	lasting = time.Hour
)

func TestKernelAcquireAndRelease(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	h := b.acquire()
	l := h.Leases()[0]
	if l.Address.String() != "10.9.0.10/24" || l.Gateway.String() != "10.9.0.1" || l.Life != 60 || l.Pending || !b.state.Given {
		t.Errorf("got %+v", l)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	kerneltest.Until(b.T, "the RELEASE", func() bool { return len(s.Leased()) == 0 })
	seen := s.Seen()
	last := seen[len(seen)-1]
	if !last.Unicast || last.ClientID != string(b.ClientID) || last.Message.ClientIPAddr.String() != "10.9.0.10" {
		t.Errorf("RELEASE: %+v", last)
	}
	if b.Kept() {
		t.Error("the state is still there")
	}
}

// Options of the configuration are sent, and the RELEASE has its client identifier: the reference
// sends another one, and the server keeps the lease.
func TestKernelConfiguredOptions(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	b.Send = []dhcp.Option{{Code: 61, Data: []byte("me")}, {Code: 12, Data: []byte("web")}}
	b.Broadcast = true
	h := b.acquire()
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	kerneltest.Until(b.T, "the RELEASE", func() bool { return s.Count(dhcpv4.MessageTypeRelease) == 1 })
	for _, m := range s.Seen() {
		if m.ClientID != "me" || !m.Message.IsBroadcast() {
			t.Errorf("got %s", m.Message.Summary())
		}
		if m.Type != dhcpv4.MessageTypeRelease && (m.Message.HostName() != "web" || !m.Message.IsOptionRequested(dhcpv4.OptionClasslessStaticRoute)) {
			t.Errorf("got %s", m.Message.Summary())
		}
	}
}

func TestKernelRenewIsUnicast(t *testing.T) {
	t.Parallel()
	b, s, h := newBound(t)
	before := h.Leases()[0].Start
	h.Keep()
	kerneltest.Until(b.T, "a renewal", func() bool { return h.Leases()[0].Start > before })
	seen := s.Seen()
	last := seen[len(seen)-1]
	if last.Type != dhcpv4.MessageTypeRequest || !last.Unicast || last.Message.ClientIPAddr.String() != "10.9.0.10" ||
		last.Message.Options.Has(dhcpv4.OptionRequestedIPAddress) || last.Message.Options.Has(dhcpv4.OptionServerIdentifier) {
		t.Errorf("renewal: %s", last.Message.Summary())
	}
}

// The server of the lease is gone, and another one answers the broadcast.
func TestKernelRebind(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	s.Times(soon, 2*soon, lasting)
	h := b.acquire()
	b.configure(h)
	before := h.Leases()[0].Start
	other := net.IPv4(10, 9, 0, 2).To4()
	s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		if m.Unicast {
			return nil
		}
		reply.UpdateOption(dhcpv4.OptServerIdentifier(other))
		return []*dhcpv4.DHCPv4{reply}
	})
	h.Keep()
	kerneltest.Until(b.T, "a rebinding", func() bool { return h.Leases()[0].Start > before })
	if got := h.Leases()[0].Server; !slices.Equal(got, other) {
		t.Errorf("server %v, want %v", got, other)
	}
}

// What a renewal changes is changed on the interface: address, gateway, routes and MTU. The
// reference only records it.
func TestKernelChangedLease(t *testing.T) {
	t.Parallel()
	b, s, h := newBound(t)
	s.Move()
	s.Life(lasting)
	s.With(dhcpv4.OptRouter(net.IPv4(10, 9, 0, 3)), dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 120}))
	h.Keep()
	kerneltest.Until(b.T, "the new address", func() bool {
		return slices.Equal(b.addresses(), []string{"10.9.0.100/24"}) && b.gateway() == "10.9.0.3" && b.link().MTU == 1400
	})
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if mtu := b.link().MTU; mtu != 1500 {
		t.Errorf("the MTU is %d after the release", mtu)
	}
}

// A renewal without changes leaves an MTU that a later plugin has set.
func TestKernelRenewalKeepsMTU(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	s.Times(soon, later, lasting)
	s.With(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 120}))
	h := b.acquire()
	b.configure(h)
	if mtu := b.link().MTU; mtu != 1400 {
		t.Errorf("MTU %d after the first lease", mtu)
	}
	if err := b.cont.SetLink(b.link().Index, rtnl.LinkChange{MTU: new(1300)}); err != nil {
		t.Fatal(err)
	}
	before := h.Leases()[0].Start
	h.Keep()
	kerneltest.Until(b.T, "a renewal", func() bool { return h.Leases()[0].Start > before })
	h.Stop() // waits for the rest of the renewal
	if mtu := b.link().MTU; mtu != 1300 {
		t.Errorf("MTU %d after a renewal, want that of the other plugin", mtu)
	}
}

// The server dies: the address is deleted when the lease expires, the link stays up, and the
// address returns with the server.
func TestKernelLeaseExpires(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	s.Life(3 * time.Second)
	h := b.acquire()
	b.configure(h)
	s.Silence()
	h.Keep()
	kerneltest.Until(b.T, "no address", func() bool { return len(b.addresses()) == 0 })
	if !b.link().Up {
		t.Error("the link is down")
	}
	if b.gateway() != "" {
		t.Error("the default route is still there")
	}
	if h.Leases()[0].Valid() {
		t.Error("the lease counts as valid")
	}
	s.Life(lasting)
	s.Answer(nil)
	kerneltest.Until(b.T, "the address again", func() bool { return slices.Equal(b.addresses(), []string{"10.9.0.10/24"}) })
	kerneltest.Until(b.T, "the route again", func() bool { return b.gateway() == "10.9.0.1" })
}

// A NAK to a renewal ends the lease at once.
func TestKernelNakOnRenewal(t *testing.T) {
	t.Parallel()
	b, s, h := newBound(t)
	s.Move()
	s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		if m.Type == dhcpv4.MessageTypeRequest && m.Message.ClientIPAddr.Equal(net.IPv4(10, 9, 0, 10)) {
			reply.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
			reply.YourIPAddr = net.IPv4zero
		}
		return []*dhcpv4.DHCPv4{reply}
	})
	h.Keep()
	kerneltest.Until(b.T, "another address", func() bool { return slices.Equal(b.addresses(), []string{"10.9.0.100/24"}) })
}

// Invalid replies are ignored, whether a valid one follows or not.
func TestKernelInvalidReplies(t *testing.T) {
	foreign := net.IPv4(10, 9, 0, 66).To4()
	tests := map[string]struct {
		lie  func(m, reply *dhcpv4.DHCPv4)
		on   dhcpv4.MessageType // the client's message that gets the invalid reply
		want string             // part of the error without a valid reply
	}{
		"wrong xid":       {func(_, r *dhcpv4.DHCPv4) { r.TransactionID[0] ^= 1 }, dhcpv4.MessageTypeDiscover, "no server answered"},
		"wrong chaddr":    {func(_, r *dhcpv4.DHCPv4) { r.ClientHWAddr = slices.Clone(r.ClientHWAddr); r.ClientHWAddr[5] ^= 1 }, dhcpv4.MessageTypeDiscover, "no server answered"},
		"zero lease time": {func(_, r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(0)) }, dhcpv4.MessageTypeDiscover, "lease time is 0"},
		"no mask":         {func(_, r *dhcpv4.DHCPv4) { delete(r.Options, uint8(dhcpv4.OptionSubnetMask)) }, dhcpv4.MessageTypeDiscover, "Subnet Mask not found in DHCPACK"},
		"odd mask":        {func(_, r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptSubnetMask(net.IPMask{255, 0, 255, 0})) }, dhcpv4.MessageTypeDiscover, "subnet mask is invalid"},
		"no server":       {func(_, r *dhcpv4.DHCPv4) { delete(r.Options, uint8(dhcpv4.OptionServerIdentifier)) }, dhcpv4.MessageTypeDiscover, "no server identifier"},
		"multicast":       {func(_, r *dhcpv4.DHCPv4) { r.YourIPAddr = net.IPv4(224, 0, 0, 1) }, dhcpv4.MessageTypeDiscover, "224.0.0.1"},
		"zero address":    {func(_, r *dhcpv4.DHCPv4) { r.YourIPAddr = net.IPv4zero }, dhcpv4.MessageTypeDiscover, "0.0.0.0"},
		"foreign ACK":     {func(_, r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptServerIdentifier(foreign)) }, dhcpv4.MessageTypeRequest, "from another server"},
		"foreign NAK": {func(_, r *dhcpv4.DHCPv4) {
			r.UpdateOption(dhcpv4.OptServerIdentifier(foreign))
			r.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
		}, dhcpv4.MessageTypeRequest, "from another server"},
		"NAK":           {func(_, r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak)) }, dhcpv4.MessageTypeRequest, "refused"},
		"other address": {func(_, r *dhcpv4.DHCPv4) { r.YourIPAddr = net.IPv4(10, 9, 0, 99) }, dhcpv4.MessageTypeRequest, "it gives 10.9.0.99"},
		"no reply":      {func(_, r *dhcpv4.DHCPv4) { r.OpCode = dhcpv4.OpcodeBootRequest }, dhcpv4.MessageTypeDiscover, "no server answered"},
	}
	for name, tt := range tests {
		t.Run(name+"/alone", func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.AcquireTimeout, b.Timeout = time.Second, 300*time.Millisecond
			s := dhcptest.Start4(t, b.Server)
			s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				if m.Type == tt.on {
					tt.lie(m.Message, reply)
				}
				return []*dhcpv4.DHCPv4{reply}
			})
			b.refused(tt.want)
		})
		t.Run(name+"/before the truth", func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			s := dhcptest.Start4(t, b.Server)
			s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				truth, _ := dhcpv4.FromBytes(reply.ToBytes())
				if m.Type != tt.on || strings.HasPrefix(name, "NAK") || name == "other address" {
					return []*dhcpv4.DHCPv4{reply}
				}
				tt.lie(m.Message, reply)
				return []*dhcpv4.DHCPv4{reply, truth}
			})
			if got := b.acquire().Leases()[0].Address.String(); got != "10.9.0.10/24" {
				t.Errorf("got %s", got)
			}
		})
	}
}

// The reply of a slow server arrives after a retransmission.
func TestKernelSlowServer(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	var first *dhcpv4.DHCPv4
	s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		switch {
		case m.Type != dhcpv4.MessageTypeDiscover:
			return []*dhcpv4.DHCPv4{reply}
		case first == nil:
			first = reply
			return nil
		}
		return []*dhcpv4.DHCPv4{first}
	})
	b.acquire()
}

// The daemon drops the lease of a container that is gone; nothing hangs.
func TestKernelContainerGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	s.Times(soon, later, lasting)
	h := b.acquire()
	h.Keep()
	if err := b.cont.DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(); !errors.Is(err, dhcp.ErrGone) {
		t.Errorf("check: %v", err)
	}
	kerneltest.Until(b.T, "the end of the keeping", func() bool { return !b.Kept() })
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}

// If the first record cannot be written, ADD fails before it sends a REQUEST.
func TestKernelRecordNotWritable(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := dhcptest.Start4(t, b.Server)
	b.fail = os.ErrPermission
	if _, err := dhcp.Acquire(t.Context(), b.Config, b.Settings, b.store); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
	if n := s.Count(dhcpv4.MessageTypeRequest); n != 0 {
		t.Errorf("%d REQUESTs without a record", n)
	}
}

// A resumed state continues with the same address: before T1, and after the end of the lease, when
// the server is asked whether it is still valid.
func TestKernelResume(t *testing.T) {
	for name, age := range map[string]time.Duration{"bound": 0, "run out": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			s := dhcptest.Start4(t, b.Server)
			h := b.acquire()
			b.configure(h)
			state := *b.state
			old := *state.Leases[0]
			old.Start -= age
			state.Leases = []*dhcp.Lease{&old}
			asked := s.Count(dhcpv4.MessageTypeDiscover)
			h2 := dhcp.Resume(state, b.Settings, b.store)
			if !h2.SameBoot() || !state.Given {
				t.Error("it is not taken for what it is")
			}
			h2.Keep()
			defer h2.Stop()
			kerneltest.Until(b.T, "a valid lease", func() bool { return h2.Leases()[0].Valid() })
			if got := b.addresses(); !slices.Equal(got, []string{"10.9.0.10/24"}) {
				t.Errorf("addresses: %v", got)
			}
			if n := s.Count(dhcpv4.MessageTypeDiscover); n != asked {
				t.Errorf("%d DISCOVERs, not %d", n, asked)
			}
		})
	}
}
