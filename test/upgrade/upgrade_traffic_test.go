package upgrade

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
)

// streamTime is how long a connection may take to open or to echo before it counts as dead.
var streamTime = kerneltest.Timeout(30 * time.Second)

// A stream is an open connection.
type stream struct {
	what   string
	banner string
	conn   net.Conn
	in     *bufio.Reader
	sent   int
}

func (n *node) dial(from *netns.NS, source netip.Addr, what, address string) (*stream, error) {
	s, d := &stream{what: what}, net.Dialer{Timeout: streamTime}
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	err := from.Do(func() (err error) { s.conn, err = d.Dial("tcp", address); return err })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	s.conn.SetDeadline(time.Now().Add(streamTime))
	s.in = bufio.NewReader(s.conn)
	if s.banner, err = s.in.ReadString('\n'); err != nil {
		s.conn.Close()
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return s, nil
}

// echo sends a line and waits for its echo.
func (s *stream) echo() error {
	s.sent++
	s.conn.SetDeadline(time.Now().Add(streamTime))
	line := fmt.Sprintf("%d %s\n", s.sent, strings.Repeat("x", 3000))
	_, err := s.conn.Write([]byte(line))
	got := ""
	if err == nil {
		got, err = s.in.ReadString('\n')
	}
	if err == nil && got != line {
		err = fmt.Errorf("got %.20q", got)
	}
	if err != nil {
		return fmt.Errorf("the open connection %s: %w", s.what, err)
	}
	return nil
}

// A way is a connection from a namespace to an address.
type way struct {
	what   string
	from   *netns.NS
	source netip.Addr // sbr routes by it; invalid: the kernel's choice
	to     string
	want   string // who answers, and the client's address that it sees
}

// ways returns the ways by which a container must be reachable, and those that it must be able to
// use.
func (n *node) ways(p *pod) (list []way) {
	at := func(host string, port int) string {
		return netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port)).String()
	}
	if p.port != 0 {
		list = append(list,
			way{"from the LAN to the port of " + p.ID, n.lan, netip.Addr{}, at(upgradeHost4, p.port), p.ID + " from " + upgradeLAN4},
			way{"from the host to the port of " + p.ID, n.NS, netip.Addr{}, at(upgradeHost4, p.port), p.ID + " from "},
			way{"from 127.0.0.1 to the port of " + p.ID, n.NS, netip.Addr{}, at("127.0.0.1", p.port), p.ID + " from "},
			way{"from the host to " + p.ID, n.NS, netip.Addr{}, at(p.v4.String(), 80), p.ID + " from "},
			way{"from " + p.ID + " to the LAN", p.NS, p.v4, at(upgradeLAN4, 80), "the LAN from " + upgradeHost4})
	}
	if p.port != 0 && p.v6.IsValid() {
		list = append(list,
			way{"from the LAN to the IPv6 port of " + p.ID, n.lan, netip.Addr{}, at(upgradeHost6, p.port), p.ID + " from [" + upgradeLAN6},
			way{"from " + p.ID + " to the LAN by IPv6", p.NS, p.v6, at(upgradeLAN6, 80), "the LAN from [" + upgradeHost6})
	}
	if p.direct {
		list = append(list,
			way{"from the LAN to " + p.ID, n.lan, netip.Addr{}, at(p.v4.String(), 80), p.ID + " from 198.51.100.1"},
			way{"from " + p.ID + " to the LAN", p.NS, p.v4, at("198.51.100.1", 80), "the LAN from " + p.v4.String()})
	}
	return list
}

// flows opens connections by all ways to and from a container; if keep is set they stay open.
func (n *node) flows(keep bool) func(p *pod) error {
	return func(p *pod) error {
		var errs []error
		for _, way := range n.ways(p) {
			s, err := n.dial(way.from, way.source, way.what, way.to)
			if err == nil {
				if !strings.HasPrefix(s.banner, way.want) {
					err = fmt.Errorf("%s: got %q, want %q", way.what, s.banner, way.want)
				}
				if keep {
					p.streams = append(p.streams, s)
				} else {
					s.conn.Close()
				}
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
}

// echoStreams sends over all open connections.
func echoStreams(p *pod) error {
	var errs []error
	for _, s := range p.streams {
		errs = append(errs, s.echo())
	}
	return errors.Join(errs...)
}

func (p *pod) hangUp() {
	for _, s := range p.streams {
		s.conn.Close()
	}
	p.streams = nil
}

// checkUnpublished checks that no port of a container is published.
func (n *node) checkUnpublished(p *pod) error {
	if p.port == 0 {
		return nil
	}
	s, err := n.dial(n.lan, netip.Addr{}, "", fmt.Sprintf("%s:%d", upgradeHost4, p.port))
	if err == nil {
		s.conn.Close()
		return fmt.Errorf("port %d still leads to %q", p.port, s.banner)
	}
	return nil
}
