package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A client4 is a DHCPv4 client on one interface: RFC 2131.
type client4 struct {
	*iface
	Config
	*Settings
	socket *socket          // of frames; receives all answers
	udp    *socket          // for sending; nil: frames are sent
	to     net.HardwareAddr // destination of the frames
	begin  time.Time        // when the client began to ask
	secs   uint16           // seconds from begin to the last message that is not the REQUEST of an offer
	xid    uint32           // of all its messages
}

// newClient4 opens the sockets for requests to all servers.
func newClient4(p *iface, c Config, s *Settings) (*client4, error) {
	if len(p.link.MAC) != 6 {
		return nil, errors.New(c.IfName + " has no Ethernet address, which DHCPv4 needs")
	}
	sock, err := packetSocket(p.ns, p.link.Index)
	if err != nil {
		return nil, err
	}
	return &client4{iface: p, Config: c, Settings: s, socket: sock, to: allHosts, begin: time.Now(), xid: rand.Uint32()}, nil
}

// close closes the sockets, the one of frames in a goroutine, since the kernel takes 10 to 30 ms for it.
func (c *client4) close() {
	if c.udp != nil {
		c.udp.close()
	}
	go c.socket.close()
}

// message returns a request with the common fields. An interface that shares its link layer address
// (ipvlan) receives no unicast answers.
func (c *client4) message(kind byte) *message4 {
	m := &message4{
		op: opRequest, xid: c.xid, hardware: 1, mac: c.link.MAC,
		broadcast: c.Broadcast || c.link.Kind == "ipvlan",
		secs:      c.secs,
	}
	m.options.set(optType, []byte{kind})
	if kind != release4 {
		m.options.set(optMaxSize, binary.BigEndian.AppendUint16(nil, longest4))
		m.options.set(optRequest, c.Request)
	}
	m.options.set(optClientID, c.ClientID)
	for _, o := range c.Send {
		if kind != release4 || o.Code == optClientID {
			m.options.set(o.Code, o.Data)
		}
	}
	return m
}

// allHosts is the broadcast address of Ethernet.
var allHosts = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// broadcast4 is the broadcast address of IPv4.
func broadcast4() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// send sends a message from its client address (ciaddr), if it has one.
func (c *client4) send(m *message4, to netip.Addr) error {
	b := m.encode()
	if c.udp != nil {
		return c.udp.send(b)
	}
	from := m.client
	if !from.IsValid() {
		from = netip.IPv4Unspecified()
	}
	return c.socket.send(frame4(endpoint{c.link.MAC, from}, endpoint{c.to, to}, b))
}

// nextRequest returns the message of a step, and the server whose answer counts; nil: any.
// The REQUEST of an offer has the secs of the DISCOVER before it: RFC 2131 section 3.1.
func (c *client4) nextRequest(s step, l *Lease) (m *message4, server []byte, err error) {
	if s != request {
		c.secs = uint16(min(time.Since(c.begin)/time.Second, 0xffff))
	}
	if s == discover {
		m = c.message(discover4)
	} else {
		m = c.message(request4)
	}
	switch s {
	case request:
		server = l.Server
		m.options.set(optServer, server)
	case renew:
		server = l.Server
		err = c.unicast(l)
	}
	switch {
	case s == renew || s == rebind: // the interface has the address
		m.client = l.Address.Addr()
	case l != nil:
		m.options.set(optAddress, l.Address.Addr().AsSlice())
	}
	return m, server, err
}

// ask implements [client]. A NAK counts as an answer: of the lease's server, or of any server if the
// request is to all of them.
func (c *client4) ask(ctx context.Context, s step, l *Lease, wait time.Duration) (*Lease, error) {
	m, server, err := c.nextRequest(s, l)
	if err != nil {
		return nil, err
	}
	start, until := sinceBoot(), time.Now().Add(wait)
	if err := c.send(m, broadcast4()); err != nil {
		return nil, err
	}
	last := errTimeout
	for {
		b, err := c.socket.receive(ctx, until)
		switch {
		case errors.Is(err, unix.ENETDOWN):
			continue // the link was down before; the kernel reports that once
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, last
		case err != nil:
			return nil, err
		}
		b, from := payload4(b)
		r, err := c.matchAnswer(m, b, server)
		if r == nil {
			continue
		}
		name := serverText(r.options.get(optServer))
		if err == nil && r.kind() == nak4 {
			return nil, wrap(name, errRefused)
		}
		var got *Lease
		if err == nil {
			got, err = lease4(r, from, start, l)
		}
		if err == nil && s == request && got.Address.Addr() != l.Address.Addr() {
			err = errors.New("it gives " + got.Address.String() + ", and offered " + l.Address.String())
		}
		if err == nil {
			return got, nil
		}
		last = wrap("an answer of "+name+" was not taken", err)
	}
}

var errForeign = errors.New("it is from another server")

// matchAnswer parses a packet and checks that it answers m: an OFFER answers a DISCOVER, an ACK or NAK
// a REQUEST. The message is nil if the packet is not for this client.
func (c *client4) matchAnswer(m *message4, b []byte, server []byte) (*message4, error) {
	r, err := parse4(b)
	if r == nil || r.op != opReply || r.xid != m.xid || !bytes.Equal(r.mac, c.link.MAC) {
		return nil, errNotDHCP
	}
	if err != nil {
		return r, err
	}
	kind := r.kind()
	switch {
	case m.kind() == discover4 && kind != offer4, m.kind() == request4 && kind != ack4 && kind != nak4:
		return r, errors.New("it is of type " + strconv.Itoa(int(kind)))
	case server != nil && !bytes.Equal(r.options.get(optServer), server):
		return r, errForeign
	}
	return r, nil
}

// serverText formats a server's identifier.
func serverText(id []byte) string {
	if a, ok := netip.AddrFromSlice(id); ok && a.Is4() {
		return "server " + a.String()
	}
	return "a server without an address"
}

// unicast makes the client send by UDP to the lease's server only, from the leased address; frames
// are for an interface without the address. The answer is still read as a frame, which has the
// server's current link layer address, for a RELEASE.
func (c *client4) unicast(l *Lease) error {
	server, _ := netip.AddrFromSlice(l.Server)
	s, err := udpSocket(c.ns, c.link, l.Address.Addr(), server)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE) {
		c.to = l.MAC
		return nil
	}
	c.udp = s
	return err
}

// release sends a RELEASE to the server, with the client identifier of the lease. There is no
// answer.
func (c *client4) release(_ context.Context, l *Lease) error {
	server, _ := netip.AddrFromSlice(l.Server)
	m := c.message(release4)
	m.client = l.Address.Addr()
	m.options.set(optServer, l.Server)
	c.to = l.MAC
	return c.send(m, server)
}
