package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"cnibox/internal/netns"
)

// timeLimit limits one connection.
const timeLimit = 2 * time.Second

// megabyte is the size of a TCP transfer in each direction.
const megabyte = 1 << 20

// A place is a namespace in which sockets are opened. They can be used from any thread.
type place struct{ ns *netns.NS }

// open calls fn in the namespace and returns what it opens. A socket stays in the namespace it was
// opened in, whichever thread uses it.
func open[T any](p *place, fn func() (T, error)) (t T, err error) {
	err = p.ns.Do(func() error {
		t, err = fn()
		return err
	})
	return t, err
}

// serve answers on a port, by TCP and UDP, until stop is called. A goroutine serves each connection
// until it ends.
func (p *place) serve(port uint16) (stop func(), err error) {
	at := fmt.Sprintf(":%d", port)
	tcp, err := open(p, func() (net.Listener, error) { return net.Listen("tcp", at) })
	if err != nil {
		return nil, err
	}
	udp, err := open(p, func() (net.PacketConn, error) { return net.ListenPacket("udp", at) })
	if err != nil {
		tcp.Close()
		return nil, err
	}
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			udp.WriteTo(b[:n], from)
		}
	}()
	return func() { tcp.Close(); udp.Close() }, nil
}

// answer sends the peer its address as seen here, and then echoes everything.
func answer(c net.Conn) {
	defer c.Close()
	fmt.Fprintf(c, "%-64s", c.RemoteAddr())
	io.Copy(c, c)
}

// dial connects to a server. The deadline is for the whole connection.
func (p *place) dial(network string, to netip.AddrPort) (net.Conn, error) {
	c, err := open(p, func() (net.Conn, error) { return net.DialTimeout(network, to.String(), timeLimit) })
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(timeLimit))
}

// echo sends a megabyte and compares the echo. It returns the address that the server saw.
func (p *place) echo(to netip.AddrPort) (seen netip.AddrPort, err error) {
	c, err := p.dial("tcp", to)
	if err != nil {
		return seen, err
	}
	defer c.Close()
	name := make([]byte, 64)
	if _, err := io.ReadFull(c, name); err != nil {
		return seen, fmt.Errorf("from %s: %w", to, err)
	}
	if seen, err = netip.ParseAddrPort(string(bytes.TrimSpace(name))); err != nil {
		return seen, err
	}
	sent, got := make([]byte, megabyte), make([]byte, megabyte)
	rand.Read(sent)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	if _, err := io.ReadFull(c, got); err != nil {
		return seen, fmt.Errorf("from %s: %w", to, err)
	}
	if !bytes.Equal(sent, got) {
		return seen, fmt.Errorf("%s did not answer what it was sent", to)
	}
	seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
	return seen, <-wrote
}

// datagram sends one datagram and waits for its echo.
func (p *place) datagram(to netip.AddrPort) error {
	c, err := p.dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	b := make([]byte, 16)
	n, err := c.Read(b)
	if err == nil && string(b[:n]) != "hello" {
		err = errors.New("another datagram came back")
	}
	return err
}
