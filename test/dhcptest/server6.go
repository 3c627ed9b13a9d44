package dhcptest

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/cnibox/cnibox/internal/netns"
)

// A Server6 leases fd09::10 to every client by DHCPv6.
type Server6 struct {
	mu     sync.Mutex
	seen   []dhcpv6.MessageType
	times  times
	ip     net.IP
	leased bool
	edit   func(kind dhcpv6.MessageType, reply *dhcpv6.Message) *dhcpv6.Message
}

// Start6 starts a server on srv0 of a namespace, with leases of one minute.
func Start6(t testing.TB, ns *netns.NS) *Server6 {
	t.Helper()
	s := &Server6{times: times{life: time.Minute}, ip: net.ParseIP("fd09::10")}
	var conn *net.UDPConn
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("srv0")
		if err != nil {
			return err
		}
		conn, err = net.ListenMulticastUDP("udp6", ifi, &net.UDPAddr{IP: dhcpv6.AllDHCPRelayAgentsAndServers, Port: 547})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.serve(conn)
	t.Cleanup(func() { conn.Close() })
	return s
}

// Life sets the length of leases from now on.
func (s *Server6) Life(d time.Duration) { s.Times(0, 0, d) }

// Times sets all times of leases from now on, as [Server4.Times].
func (s *Server6) Times(t1, t2, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = times{t1, t2, life}
}

// Move makes it lease another address from now on.
func (s *Server6) Move(ip string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ip = net.ParseIP(ip)
}

// Edit sets a function that changes replies; if it returns nil none is sent.
func (s *Server6) Edit(fn func(kind dhcpv6.MessageType, reply *dhcpv6.Message) *dhcpv6.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edit = fn
}

// Seen returns the types of the messages received so far.
func (s *Server6) Seen() []dhcpv6.MessageType {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Leased reports whether the address is leased now.
func (s *Server6) Leased() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased
}

// serve replies in the order of the messages; the library's own server does not.
func (s *Server6) serve(conn *net.UDPConn) {
	b := make([]byte, 4096)
	for {
		n, peer, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		if m, err := dhcpv6.MessageFromBytes(b[:n]); err == nil {
			s.handle(conn, peer, m)
		}
	}
}

func (s *Server6) handle(conn net.PacketConn, peer net.Addr, m *dhcpv6.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, m.MessageType)
	own := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	var id [4]byte
	if ia := m.Options.OneIANA(); ia != nil {
		id = ia.IaId
	}
	ia := &dhcpv6.OptIANA{IaId: id, T1: s.times.t1, T2: s.times.t2}
	ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: s.ip, PreferredLifetime: s.times.life, ValidLifetime: s.times.life})
	reply, err := dhcpv6.NewReplyFromMessage(m, own)
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit:
		reply, err = dhcpv6.NewAdvertiseFromSolicit(m, own)
	case dhcpv6.MessageTypeRelease:
		s.leased = false
		ia.Options = dhcpv6.IdentityOptions{}
	default:
		s.leased = true
	}
	if err != nil {
		return
	}
	reply.AddOption(ia)
	reply.AddOption(dhcpv6.OptDNS(net.ParseIP("fd09::53")))
	if s.edit != nil {
		if reply = s.edit(m.MessageType, reply); reply == nil {
			return
		}
	}
	conn.WriteTo(reply.ToBytes(), peer)
}
