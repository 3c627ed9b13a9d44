// Package dhcptest has DHCP servers for tests, which misbehave as a test needs. Their messages are
// encoded by a library that shares no code with ours. It is for tests only.
package dhcptest

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// A Wire is a veth pair between a server and a container: srv0 with 10.9.0.1/24 and fd09::1 in the
// server's namespace, and eth0 in the container's, down.
type Wire struct{ Server, Container *netns.NS }

// NewWire makes the namespaces and the pair.
func NewWire(t testing.TB) Wire {
	t.Helper()
	w := Wire{kerneltest.NS(t), kerneltest.NS(t)}
	kerneltest.AddLink(t, w.Server, rtnl.LinkSpec{Name: "srv0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: w.Container}})
	kerneltest.Address(t, w.Server, "srv0", "10.9.0.1/24", "fd09::1/64")
	return w
}

// Bridge adds a bridge to a host, with one port. Its peer srv0 in the server's namespace has
// 10.9.0.1/24.
func Bridge(t testing.TB, host *netns.NS, name string) (server *netns.NS) {
	t.Helper()
	server = kerneltest.NS(t)
	br := kerneltest.AddLink(t, host, rtnl.LinkSpec{Name: name, Kind: rtnl.Bridge{}, Up: true}).Index
	kerneltest.AddLink(t, host, rtnl.LinkSpec{Name: "port0", Up: true, Master: br, Peer: &rtnl.LinkSpec{Name: "srv0", NS: server}})
	if err := host.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", "0"); err != nil { // as the plugin does
		t.Fatal(err)
	}
	kerneltest.Address(t, server, "srv0", "10.9.0.1/24")
	return server
}

// A Seen is one message that a server got.
type Seen struct {
	Type     dhcpv4.MessageType
	Unicast  bool // sent to the server's address
	ClientID string
	Message  *dhcpv4.DHCPv4
}

// A Server4 leases the addresses from 10.9.0.10 on, one to each client identifier.
type Server4 struct {
	mu     sync.Mutex
	seen   []Seen
	leased map[string]net.IP // or offered
	bound  map[string]bool   // acknowledged
	times  times
	answer func(m Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4
	lose   func(m Seen) bool
	conn   *net.UDPConn
}

// The times of a lease: T1, T2 and its length. T1 and T2 of 0 are not sent.
type times struct{ t1, t2, life time.Duration }

// ServerIP is the address of srv0.
var ServerIP = net.IPv4(10, 9, 0, 1).To4()

// Start4 starts a server on srv0 of a namespace, with leases of one minute.
func Start4(t testing.TB, ns *netns.NS) *Server4 {
	t.Helper()
	s := &Server4{leased: map[string]net.IP{}, bound: map[string]bool{}, times: times{life: time.Minute}}
	err := ns.Do(func() (err error) {
		s.conn, err = server4.NewIPv4UDPConn("srv0", &net.UDPAddr{Port: 67})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := reportDestinations(s.conn); err != nil {
		t.Fatal(err)
	}
	go s.serve()
	t.Cleanup(s.Stop)
	return s
}

// Stop ends the server; a new one does not know its leases.
func (s *Server4) Stop() { s.conn.Close() }

// Life sets the length of leases from now on.
func (s *Server4) Life(d time.Duration) { s.Times(0, 0, d) }

// Times sets all times of leases from now on. A long lease with a short T1 is renewed soon but does
// not expire on a busy machine.
func (s *Server4) Times(t1, t2, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = times{t1, t2, life}
}

// Answer sets a function that changes replies; nil: none. If it returns no messages none are sent.
func (s *Server4) Answer(fn func(m Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = fn
}

// Lose sets a function that returns true for messages that the server must not see.
func (s *Server4) Lose(fn func(m Seen) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = fn
}

// With adds options to each reply.
func (s *Server4) With(options ...dhcpv4.Option) {
	s.Answer(func(_ Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		for _, o := range options {
			reply.UpdateOption(o)
		}
		return []*dhcpv4.DHCPv4{reply}
	})
}

// Silence stops all replies.
func (s *Server4) Silence() {
	s.Answer(func(Seen, *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return nil })
}

// Move makes the server lease addresses from 10.9.0.100 on from now on.
func (s *Server4) Move() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ip := range s.leased {
		s.leased[id] = net.IPv4(ip[0], ip[1], ip[2], ip[3]+90).To4()
	}
}

// Seen returns the messages received so far.
func (s *Server4) Seen() []Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Count returns how many messages of a type were received.
func (s *Server4) Count(kind dhcpv4.MessageType) (n int) {
	for _, m := range s.Seen() {
		if m.Type == kind {
			n++
		}
	}
	return n
}

// Leased returns the addresses that are leased now, by client identifier.
func (s *Server4) Leased() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string]string{}
	for id := range s.bound {
		list[id] = s.leased[id].String()
	}
	return list
}

// reportDestinations sets IP_PKTINFO (ip(7)), by which each packet comes with its destination. With
// two sockets the order of reading would be random.
func reportDestinations(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
	return errors.Join(err, set)
}

// destination returns the destination of a packet, or nil if it is not known.
func destination(oob []byte) net.IP {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(all) != 1 || len(all[0].Data) < 12 {
		return nil
	}
	return all[0].Data[8:12] // ipi_addr of struct in_pktinfo
}

func (s *Server4) serve() {
	b, oob := make([]byte, 4096), make([]byte, 64)
	for {
		n, more, _, to, err := s.conn.ReadMsgUDP(b, oob)
		if err != nil {
			return
		}
		m, err := dhcpv4.FromBytes(b[:n])
		if err != nil {
			continue
		}
		if to.IP.Equal(net.IPv4zero) {
			to = &net.UDPAddr{IP: net.IPv4bcast, Port: to.Port}
		}
		for _, r := range s.handle(m, destination(oob[:more]).Equal(ServerIP)) {
			s.conn.WriteTo(r.ToBytes(), to)
		}
	}
}

// handle records a message and returns the replies.
func (s *Server4) handle(m *dhcpv4.DHCPv4, unicast bool) []*dhcpv4.DHCPv4 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := string(m.Options.Get(dhcpv4.OptionClientIdentifier))
	seen := Seen{m.MessageType(), unicast, id, m}
	if s.lose != nil && s.lose(seen) {
		return nil
	}
	s.seen = append(s.seen, seen)
	kind := dhcpv4.MessageTypeOffer
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
	case dhcpv4.MessageTypeRequest:
		kind = dhcpv4.MessageTypeAck
	case dhcpv4.MessageTypeRelease:
		if s.leased[id].Equal(m.ClientIPAddr) {
			delete(s.leased, id)
			delete(s.bound, id)
		}
		return nil
	default:
		return nil
	}
	if s.leased[id] == nil {
		s.leased[id] = s.free()
	}
	reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(s.leased[id]),
		dhcpv4.WithServerIP(ServerIP), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ServerIP)),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithRouter(ServerIP), dhcpv4.WithLeaseTime(uint32(s.times.life/time.Second)))
	if err != nil {
		return nil
	}
	if s.times.t1 > 0 {
		reply.UpdateOption(dhcpv4.OptRenewTimeValue(s.times.t1))
		reply.UpdateOption(dhcpv4.OptRebindingTimeValue(s.times.t2))
	}
	if kind == dhcpv4.MessageTypeAck {
		s.bound[id] = true
	}
	if s.answer != nil {
		return s.answer(seen, reply)
	}
	return []*dhcpv4.DHCPv4{reply}
}

// free returns the first address without a client.
func (s *Server4) free() net.IP {
	for last := byte(10); ; last++ {
		ip := net.IPv4(10, 9, 0, last).To4()
		taken := false
		for _, other := range s.leased {
			taken = taken || other.Equal(ip)
		}
		if !taken {
			return ip
		}
	}
}
