package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tryTime limits one attempt to connect.
const tryTime = 3 * time.Second

// port is that of all servers.
const port = 5000

// A server answers by TCP and UDP, over both families, in the namespace it was opened in. By TCP it
// writes the client's address in a line, then echoes. By UDP it writes the client's address and the
// number of bytes received.
type server struct {
	tcp    net.Listener
	udp    net.PacketConn
	echoed chan struct{} // one value if a connection has ended that sent something
}

// serve opens a server in a namespace.
func serve(ns namespace) (*server, error) {
	s := &server{echoed: make(chan struct{}, 1)}
	err := ns.do(func() (err error) {
		if s.tcp, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			return err
		}
		s.udp, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := s.tcp.Accept()
			if err != nil {
				return
			}
			go s.echo(conn)
		}
	}()
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := s.udp.ReadFrom(b)
			if err != nil {
				return
			}
			s.udp.WriteTo(fmt.Appendf(nil, "%s %d", plain(from), n), from)
		}
	}()
	return s, nil
}

// close closes the listeners; connections end with their clients.
func (s *server) close() {
	s.tcp.Close()
	s.udp.Close()
}

// drain returns when no client has come for five seconds, as an application does that must not lose
// a request: how late it is removed from services depends on the machine.
func (s *server) drain() {
	for {
		select {
		case <-s.echoed:
		case <-time.After(5 * time.Second):
			return
		}
	}
}

func (s *server) echo(conn net.Conn) {
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, plain(conn.RemoteAddr())); err != nil {
		return
	}
	if n, _ := io.Copy(conn, conn); n > 0 { // the kubelet's probe sends nothing
		select {
		case s.echoed <- struct{}{}:
		default:
		}
	}
}

// plain returns the address without port and zone, and an IPv4-mapped one as IPv4.
func plain(a net.Addr) netip.Addr {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().WithZone("")
}

// A stream is an open connection to a server.
type stream struct {
	net.Conn
	in   *bufio.Reader
	seen netip.Addr // the client's address that the server sees
}

// connect opens a stream from a namespace.
func connect(ns namespace, to netip.AddrPort) (*stream, error) {
	s := &stream{}
	err := ns.do(func() (err error) {
		s.Conn, err = net.DialTimeout("tcp", to.String(), tryTime)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.in = bufio.NewReader(s)
	s.SetDeadline(time.Now().Add(tryTime))
	line, err := s.in.ReadString('\n')
	if err == nil {
		s.seen, err = netip.ParseAddr(strings.TrimSpace(line))
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	return s, nil
}

// exchange sends bytes and compares the echo, concurrently.
func (s *stream) exchange(size int, within time.Duration) error {
	s.SetDeadline(time.Now().Add(within))
	sent, got := make([]byte, size), make([]byte, size)
	rand.Read(sent)
	written := make(chan error, 1)
	go func() {
		_, err := s.Write(sent)
		written <- err
	}()
	n, err := io.ReadFull(s.in, got)
	if err != nil {
		err = fmt.Errorf("%s: %d of %d bytes came back: %w", s.RemoteAddr(), n, size, err)
		s.Close()
	} else if !bytes.Equal(sent, got) {
		err = fmt.Errorf("%s: other bytes came back", s.RemoteAddr())
	}
	return errors.Join(err, <-written)
}

// seenFrom connects, and returns the client's address that the server sees.
func seenFrom(ns namespace, to netip.AddrPort) (netip.Addr, error) {
	s, err := connect(ns, to)
	if err != nil {
		return netip.Addr{}, err
	}
	defer s.Close()
	return s.seen, s.exchange(1, tryTime)
}

// wantSeen connects until the server sees this client address; the zero Addr is any.
func wantSeen(ns namespace, to netip.AddrPort, want netip.Addr) error {
	return eventually(func() error {
		got, err := seenFrom(ns, to)
		if err == nil && want.IsValid() && got != want {
			err = fmt.Errorf("%s sees %s, want %s", to, got, want)
		}
		return err
	})
}

// datagram sends one IP packet of this total size with DF set, and checks that it arrives whole.
// The error is EMSGSIZE if it exceeds the MTU of the link, or the path MTU that the kernel knows.
func datagram(ns namespace, to netip.AddrPort, size int) error {
	header, level, option, never := 28, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if to.Addr().Is6() {
		header, level, option, never = 48, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	dialer := net.Dialer{Timeout: tryTime, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, never) })
		return errors.Join(cerr, err)
	}}
	var conn net.Conn
	err := ns.do(func() (err error) {
		conn, err = dialer.DialContext(context.Background(), "udp", to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(tryTime))
	if _, err := conn.Write(make([]byte, size-header)); err != nil {
		return err
	}
	b := make([]byte, 100)
	n, err := conn.Read(b)
	if err != nil {
		return fmt.Errorf("a packet of %d bytes to %s: %w", size, to, err)
	}
	if want := fmt.Sprintf(" %d", size-header); !strings.HasSuffix(string(b[:n]), want) {
		return fmt.Errorf("a packet of %d bytes to %s: got %q, want%s", size, to, b[:n], want)
	}
	return nil
}
