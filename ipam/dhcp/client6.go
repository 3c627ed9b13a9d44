package dhcp

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// A client6 is a DHCPv6 client on one interface, from its link-local address: RFC 8415.
type client6 struct {
	*iface
	Config
	*Settings
	socket *socket
	kind   byte      // of the last message
	begin  time.Time // when the first of that type was sent
	xid    uint32    // of its messages; each type adds its own number
}

// servers6 is All_DHCP_Relay_Agents_and_Servers: RFC 8415 section 7.1.
func servers6() netip.Addr { return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 13: 1, 15: 2}) }

// newClient6 waits until the link-local address can be used, and opens the socket.
func newClient6(ctx context.Context, p *iface, c Config, s *Settings) (*client6, error) {
	a, err := p.linkLocal(ctx)
	if err != nil {
		return nil, err
	}
	sock, err := udpSocket(p.ns, p.link, a, servers6())
	if err != nil {
		return nil, err
	}
	return &client6{iface: p, Config: c, Settings: s, socket: sock, xid: rand.Uint32()}, nil
}

func (c *client6) close() { c.socket.close() }

// linkLocal returns the link-local address, which the kernel assigns when the link comes up, and which
// can be used after duplicate address detection. It enables IPv6 on the link, which container engines
// often disable.
func (p *iface) linkLocal(ctx context.Context) (netip.Addr, error) {
	if err := p.ns.SetSysctl("net/ipv6/conf/"+p.link.Name+"/disable_ipv6", "0"); err != nil {
		return netip.Addr{}, err
	}
	for {
		addrs, err := p.conn.Addrs(p.link.Index)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, a := range addrs {
			if a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() && !a.Tentative && !a.DADFailed {
				return a.Prefix.Addr(), nil
			}
		}
		if !pause(ctx, 4*carrierPause) {
			return netip.Addr{}, &TimeoutError{errors.New(p.link.Name + " has no link-local address to ask for an IPv6 lease from")}
		}
	}
}

// message returns a request with the common fields. The first message of an exchange has elapsed
// time 0: RFC 8415 section 21.9.
func (c *client6) message(kind byte, l *Lease) *message6 {
	now := time.Now()
	if kind != c.kind {
		c.kind, c.begin = kind, now
	}
	m := &message6{kind: kind, xid: (c.xid + uint32(kind)) & 0xffffff, client: c.DUID, elapsed: now.Sub(c.begin)}
	if l != nil && l.Is6() {
		m.address = l.Address.Addr()
	}
	return m
}

// ask implements [client]. It ignores a server without a free address, since another may have one.
// After the first SOLICIT it waits for all offers, as RFC 8415 section 18.2.1 requires, and takes
// the one with the highest preference; the maximum preference ends the wait.
func (c *client6) ask(ctx context.Context, s step, l *Lease, wait time.Duration) (*Lease, error) {
	kind := [...]byte{discover: solicit6, request: request6, renew: renew6, rebind: rebind6, reboot: rebind6}[s]
	collect := s == discover && c.kind != kind
	m := c.message(kind, l)
	if s == request || s == renew {
		m.server = l.Server
	}
	start, until := sinceBoot(), time.Now().Add(wait)
	if err := c.socket.send(m.encode()); err != nil {
		return nil, err
	}
	var best *Lease
	most, last := -1, errTimeout
	for {
		b, err := c.socket.receive(ctx, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return best, last
		}
		if err != nil {
			return nil, err
		}
		r, err := c.matchAnswer(m, b)
		if r == nil {
			continue
		}
		var got *Lease
		if err == nil {
			got, err = lease6(r, start)
		}
		if errors.Is(err, errNoTime) && s != discover && s != request { // RFC 8415 section 18.2.10.1
			err = errRefused
		}
		pref := r.preference()
		switch {
		case err == nil && collect && pref < 255:
			if pref > most {
				best, most, last = got, pref, nil
			}
		case err == nil, s != discover && errors.Is(err, errRefused):
			return got, err
		case best == nil:
			last = wrap("an answer was not taken", err)
		}
	}
}

// matchAnswer parses a packet and checks that it answers m: an ADVERTISE answers a SOLICIT, a REPLY all
// else, and it is from the server that was asked. The message is nil if it is not for this client.
func (c *client6) matchAnswer(m *message6, b []byte) (*message6, error) {
	r, err := parse6(b)
	// The client's identifier may be behind the option that is cut off.
	if r == nil || r.xid != m.xid || !bytes.Equal(r.client, m.client) && (err == nil || r.client != nil) {
		return nil, errNotDHCP
	}
	if err != nil {
		return r, err
	}
	want := byte(reply6)
	if m.kind == solicit6 {
		want = advertise6
	}
	switch {
	case r.kind != want:
		return r, errors.New("it is of type " + strconv.Itoa(int(r.kind)))
	case len(r.server) == 0:
		return r, errors.New("it has no server identifier")
	case m.server != nil && !bytes.Equal(r.server, m.server):
		return r, errForeign
	}
	return r, nil
}

// releaseWait is the longest wait for the answer to a RELEASE.
const releaseWait = 500 * time.Millisecond

func (c *client6) release(ctx context.Context, l *Lease) error {
	m := c.message(release6, l)
	m.server = l.Server
	if err := c.socket.send(m.encode()); err != nil {
		return err
	}
	for until := time.Now().Add(releaseWait); ; {
		b, err := c.socket.receive(ctx, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if r, err := c.matchAnswer(m, b); r != nil && err == nil {
			return nil
		}
	}
}
