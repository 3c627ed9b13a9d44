package dhcp

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A Lease is what a server has granted, or is asked for. T1, T2 and Life are in seconds from Start;
// math.MaxUint32 is infinity. It is written to disk as JSON.
type Lease struct {
	Address netip.Prefix     `json:"address"`
	Server  []byte           `json:"server"`              // its identifier: DHCPv4's 4 bytes, DHCPv6's DUID
	MAC     net.HardwareAddr `json:"serverMAC,omitempty"` // DHCPv4: source of its answer, server or relay

	// Start is when its request was sent, as time since the boot, including sleep.
	Start time.Duration `json:"start"`
	T1    uint32        `json:"t1"`   // when to ask its server to extend it
	T2    uint32        `json:"t2"`   // when to ask all servers
	Life  uint32        `json:"life"` // when it expires

	Gateway netip.Addr   `json:"gateway,omitzero"`
	Routes  []Route      `json:"routes,omitempty"`
	DNS     []netip.Addr `json:"dns,omitempty"`
	Domain  string       `json:"domain,omitempty"`
	Search  []string     `json:"search,omitempty"`
	NTP     []netip.Addr `json:"ntp,omitempty"`
	MTU     int          `json:"mtu,omitempty"` // bytes; 0: not sent

	// Pending: requested, without an answer yet. Lapsed: expired, so the interface must not have the
	// address any more.
	Pending bool `json:"pending,omitempty"`
	Lapsed  bool `json:"lapsed,omitempty"`

	// On has the address and the routes of the interface while they are not yet those of the lease;
	// nil: they are.
	On *Lease `json:"on,omitempty"`
}

// wanted returns the address and the routes that the interface is to have.
func (l *Lease) wanted() *Lease {
	if l.Pending || l.Lapsed {
		return &Lease{}
	}
	return &Lease{Address: l.Address, Routes: l.Routes}
}

// after returns the lease as the successor of an old one on the interface: with On, if they differ
// there, so that it is recorded before the interface is changed.
func (l *Lease) after(old *Lease) *Lease {
	next, want := *l, l.wanted()
	current := old.On
	if current == nil {
		current = old.wanted()
	}
	same := current.Address == want.Address && len(current.Routes) == len(want.Routes)
	for _, r := range current.Routes {
		same = same && slices.Contains(want.Routes, r)
	}
	if !same {
		next.On = current
	}
	return &next
}

// Is6 reports whether it is a lease of DHCPv6.
func (l *Lease) Is6() bool { return l.Address.Addr().Is6() }

// Valid reports whether the address may be used now.
func (l *Lease) Valid() bool { return !l.Pending && !l.Lapsed && sinceBoot() < l.end(l.Life) }

// end returns when a time of the lease ends, as time since the boot; infinity is 292 years.
func (l *Lease) end(seconds uint32) time.Duration {
	if seconds == math.MaxUint32 {
		return math.MaxInt64
	}
	return l.Start + time.Duration(seconds)*time.Second
}

// sinceBoot returns the time since the boot, including sleep. Go's clock stops while the machine
// sleeps, and the server's does not. It is a variable for tests with a fake clock.
var sinceBoot = func() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// usualLife is the length of a lease for which the server sends none, in seconds.
const usualLife = 3600

// leastMTU is the smallest MTU that is accepted from a server, in bytes. RFC 2132 section 5.1
// allows 68, which is too small in practice; every host must accept 576: RFC 1122 section 3.3.2.
const leastMTU = 576

var errNoTime = errors.New("its lease time is 0")

// times sets the times that the server sent; invalid t1 and t2 get the defaults of RFC 2131 section
// 4.4.5.
func (l *Lease) times(life, t1, t2 uint32) error {
	if life == 0 {
		return errNoTime
	}
	if life == math.MaxUint32 {
		l.Life, l.T1, l.T2 = life, life, life
		return nil
	}
	if t1 == 0 || t1 >= life {
		t1 = life / 2
	}
	if t2 <= t1 || t2 > life {
		t2 = max(t1, uint32(uint64(life)*7/8))
	}
	l.Life, l.T1, l.T2 = life, t1, t2
	return nil
}

// lease4 reads what an OFFER or ACK grants. from is the link layer address of its sender; had is the
// lease in the request, nil if there is none.
func lease4(m *message4, from net.HardwareAddr, start time.Duration, had *Lease) (*Lease, error) {
	bits, ok := prefixBits(m.options.get(optMask))
	switch {
	case !isHost(m.yours):
		return nil, errors.New("it gives the address " + m.yours.String())
	case len(m.options.get(optServer)) != 4:
		return nil, errors.New("it has no server identifier")
	case ok:
	case had != nil && had.Address.Addr() == m.yours: // an ACK that has only what has changed
		bits = had.Address.Bits()
	case m.options.get(optMask) == nil:
		return nil, errors.New("DHCP option Subnet Mask not found in DHCPACK")
	default:
		return nil, errors.New("its subnet mask is invalid")
	}
	l := &Lease{
		Address: netip.PrefixFrom(m.yours, bits), Server: m.options.get(optServer), MAC: from, Start: start,
		Gateway: m.options.addr(optRouter), DNS: m.options.addrs(optDNS), NTP: m.options.addrs(optNTP),
		Domain: domainName(string(m.options.get(optDomain))), Search: domainList(m.options.get(optSearch)),
	}
	if of := l.taken(); of != "" {
		return nil, errors.New("it gives the address " + l.Address.String() + ", " + of)
	}
	life, ok := m.options.number(optLeaseTime)
	if !ok {
		life = usualLife
	}
	t1, _ := m.options.number(optT1)
	t2, _ := m.options.number(optT2)
	if err := l.times(life, t1, t2); err != nil {
		return nil, err
	}
	if mtu := m.options.get(optMTU); len(mtu) == 2 && binary.BigEndian.Uint16(mtu) >= leastMTU {
		l.MTU = int(binary.BigEndian.Uint16(mtu))
	}
	l.readRoutes(m.options)
	l.reachGateways()
	return l, nil
}

// taken says why no host may have an IPv4 lease's address; empty: it may. Both addresses of a /31 are
// of hosts (RFC 3021).
func (l *Lease) taken() string {
	a, network := l.Address.Addr(), l.Address.Masked()
	switch {
	case a == l.Gateway:
		return "which is its router's"
	case network.Bits() >= 31:
	case a == network.Addr():
		return "which is the network's own"
	case !network.Contains(a.Next()):
		return "which is the network's broadcast address"
	}
	return ""
}

// readRoutes reads option 121; if it is present, all other routes are ignored: RFC 3442. Otherwise
// it reads the routes of option 33 and then the default route.
func (l *Lease) readRoutes(o options) {
	if data := o.get(optRoutes); data != nil {
		if routes, ok := classless(data); ok && len(routes) > 0 {
			l.Routes = routes
			return
		}
	}
	l.Routes = classful(o.get(optStaticRoutes))
	if l.Gateway.IsValid() {
		l.Routes = append(l.Routes, Route{netip.PrefixFrom(netip.IPv4Unspecified(), 0), l.Gateway})
	}
}

// reachGateways puts, for an address without a network (/32), as cloud providers lease it, a route on the
// link to each gateway before the routes by these.
func (l *Lease) reachGateways() {
	if !l.Address.IsSingleIP() {
		return
	}
	for _, r := range slices.Clone(l.Routes) {
		onLink := func(n Route) bool { return !n.GW.IsValid() && n.Dst.Contains(r.GW) }
		if r.GW.IsValid() && !slices.ContainsFunc(l.Routes, onLink) {
			l.Routes = append(l.Routes, Route{Dst: netip.PrefixFrom(r.GW, r.GW.BitLen())})
		}
	}
	slices.SortStableFunc(l.Routes, func(a, b Route) int {
		switch {
		case a.GW.IsValid() == b.GW.IsValid():
			return 0
		case b.GW.IsValid():
			return -1
		}
		return 1
	})
}
