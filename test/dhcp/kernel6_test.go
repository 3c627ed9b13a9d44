package dhcp_test

import (
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/dhcptest"
)

// newBed6 makes a bed for DHCPv6 only.
func newBed6(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.V4, b.V6 = false, true
	return b
}

func TestKernelAcquire6(t *testing.T) {
	t.Parallel()
	b := newBed6(t)
	s := dhcptest.Start6(t, b.Server)
	h := b.acquire()
	l := h.Leases()[0]
	if l.Address.String() != "fd09::10/128" || l.Life != 60 || len(l.DNS) != 1 || l.Pending {
		t.Errorf("got %+v", l)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	kerneltest.Until(b.T, "the RELEASE", func() bool { return !s.Leased() })
}

func TestKernelBothFamilies(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.V6 = true
	s4, s6 := dhcptest.Start4(t, b.Server), dhcptest.Start6(t, b.Server)
	h := b.acquire()
	var got []string
	for _, l := range h.Leases() {
		got = append(got, l.Address.String())
	}
	if !slices.Equal(got, []string{"10.9.0.10/24", "fd09::10/128"}) {
		t.Errorf("got %v", got)
	}
	h.Keep()
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	kerneltest.Until(b.T, "both RELEASEs", func() bool { return !s6.Leased() && len(s4.Leased()) == 0 })
}

// RENEW, then REBIND after the server has stopped answering RENEW, and a changed address.
func TestKernelRenew6(t *testing.T) {
	t.Parallel()
	b := newBed6(t)
	s := dhcptest.Start6(t, b.Server)
	s.Times(soon, later, lasting)
	h := b.acquire()
	b.configure(h)
	before := h.Leases()[0].Start
	s.Times(soon, 2*soon, lasting)
	renewed := false
	s.Edit(func(kind dhcpv6.MessageType, reply *dhcpv6.Message) *dhcpv6.Message {
		if kind == dhcpv6.MessageTypeRenew && renewed {
			return nil
		}
		renewed = true
		return reply
	})
	h.Keep()
	kerneltest.Until(b.T, "a renewal", func() bool { return h.Leases()[0].Start > before })
	s.Move("fd09::20")
	kerneltest.Until(b.T, "the new address", func() bool { return slices.Equal(b.addresses(), []string{"fd09::20/128"}) })
	if seen := s.Seen(); !slices.Contains(seen, dhcpv6.MessageTypeRenew) || !slices.Contains(seen, dhcpv6.MessageTypeRebind) {
		t.Errorf("seen %v", seen)
	}
}

func TestKernelInvalidReplies6(t *testing.T) {
	tests := map[string]struct {
		lie  func(kind dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message
		want string
	}{
		"silent": {func(dhcpv6.MessageType, *dhcpv6.Message) *dhcpv6.Message { return nil }, "no server answered"},
		"wrong xid": {func(_ dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
			r.TransactionID[0] ^= 1
			return r
		}, "no server answered"},
		"another client": {func(_ dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
			r.UpdateOption(dhcpv6.OptClientID(&dhcpv6.DUIDUUID{UUID: [16]byte{1}}))
			return r
		}, "no server answered"},
		"another server": {func(kind dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
			if kind == dhcpv6.MessageTypeRequest {
				r.UpdateOption(dhcpv6.OptServerID(&dhcpv6.DUIDUUID{UUID: [16]byte{1}}))
			}
			return r
		}, "from another server"},
		"refuses": {func(kind dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
			r.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail})
			return r
		}, "status 2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed6(t)
			b.AcquireTimeout, b.Timeout = 4*time.Second, 300*time.Millisecond
			dhcptest.Start6(t, b.Server).Edit(tt.lie)
			b.refused(tt.want)
		})
	}
}

// Without a link-local address no server can be asked, but the address is deleted when its lifetime
// ends.
func TestKernelNoLinkLocal(t *testing.T) {
	t.Parallel()
	b := newBed6(t)
	s := dhcptest.Start6(t, b.Server)
	s.Life(2 * time.Second)
	h := b.acquire()
	b.configure(h)
	addrs, err := b.cont.Addrs(b.link().Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if a.Prefix.Addr().IsLinkLocalUnicast() {
			if err := b.cont.Do(rtnl.DropAddr(b.link().Index, a)); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.Keep()
	kerneltest.Until(b.T, "no address", func() bool { return len(b.addresses()) == 0 })
}

// Of two servers the one with the higher preference is chosen, although it is slower. On a busy
// machine its ADVERTISE may come too late, so this is retried.
func TestKernelPreference6(t *testing.T) {
	t.Parallel()
	b := newBed6(t)
	answered := make(chan struct{}, 100)
	dhcptest.Start6(t, b.Server).Edit(func(kind dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
		if kind == dhcpv6.MessageTypeSolicit {
			answered <- struct{}{}
		}
		return r
	})
	keen := dhcptest.Start6(t, b.Server)
	keen.Move("fd09::20")
	keen.Edit(func(kind dhcpv6.MessageType, r *dhcpv6.Message) *dhcpv6.Message {
		if kind == dhcpv6.MessageTypeSolicit { // both servers get it
			<-answered
		}
		r.UpdateOption(dhcpv6.OptServerID(&dhcpv6.DUIDUUID{UUID: [16]byte{1}}))
		r.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionPreference, OptionData: []byte{5}})
		return r
	})
	got := ""
	for tries := 0; got != "fd09::20/128" && tries < 10; tries++ {
		h := b.acquire()
		got = h.Leases()[0].Address.String()
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got != "fd09::20/128" {
		t.Errorf("got %s each time", got)
	}
}
