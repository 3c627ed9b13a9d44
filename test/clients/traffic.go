package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/netns"
)

// name is the only one that the server outside knows; its address is named.
const name = "name.example"

var nameAddr = netip.MustParseAddr("203.0.113.7")

// serveDNS answers queries in a namespace until stop is called. A socket stays in the namespace it
// was opened in, whatever thread uses it.
func serveDNS(ns *netns.NS, at netip.AddrPort) (stop func(), err error) {
	var socket net.PacketConn
	err = ns.Do(func() error {
		socket, err = net.ListenPacket("udp4", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("name server: %w", err)
	}
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := socket.ReadFrom(query)
			if err != nil {
				return
			}
			if reply := answer(query[:n]); reply != nil {
				socket.WriteTo(reply, from)
			}
		}
	}()
	return func() { socket.Close() }, nil
}

// serveIn answers queries in the namespace at a path.
func serveIn(path string, at netip.AddrPort) (stop func(), err error) {
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return serveDNS(ns, at)
}

// answer has one address for a query of type A, and none for other types. A query that is too short
// gets no reply. Layout: RFC 1035, section 4.
func answer(query []byte) []byte {
	const header, typeA = 12, 1
	end := header
	for end < len(query) && query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5 // the root's length, type and class
	if len(query) < header || end > len(query) {
		return nil
	}
	reply := append([]byte{}, query[:end]...)
	binary.BigEndian.PutUint16(reply[2:], 0x8180) // a reply without error, recursion available
	copy(reply[6:header], make([]byte, 6))
	if binary.BigEndian.Uint16(reply[end-4:]) != typeA {
		return reply
	}
	reply[7] = 1                                                           // one answer: the name of the question, A, IN,
	reply = append(reply, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4) // a minute, four bytes
	return append(reply, nameAddr.AsSlice()...)
}

// lookup queries the name at a server by UDP, until it answers. The socket is opened in ns; nil is
// the host's.
func lookup(ns *netns.NS, at netip.AddrPort) error {
	return eventually(func() error { return lookupOnce(ns, at) })
}

func lookupOnce(ns *netns.NS, at netip.AddrPort) error {
	c, err := dial(ns, "udp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	query := []byte{0xbe, 0xef, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // one question, recursion desired
	for label := range strings.SplitSeq(name, ".") {
		query = append(append(query, byte(len(label))), label...)
	}
	query = append(query, 0, 0, 1, 0, 1) // type A, class IN
	if _, err := c.Write(query); err != nil {
		return err
	}
	got := make([]byte, 512)
	n, err := c.Read(got)
	if err == nil && !bytes.HasSuffix(got[:n], nameAddr.AsSlice()) {
		err = fmt.Errorf("%s answered % x", at, got[:n])
	}
	return err
}

// tryTime limits one attempt.
const tryTime = 2 * time.Second

// dial connects from a namespace. The connect and all that follows are limited to [tryTime] each.
func dial(ns *netns.NS, network string, at netip.AddrPort) (c net.Conn, err error) {
	connect := func() (err error) {
		c, err = net.DialTimeout(network, at.String(), tryTime)
		return err
	}
	if ns != nil {
		err = ns.Do(connect)
	} else {
		err = connect()
	}
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(tryTime))
}

// fetch reads the page of a web server, until it answers. The socket is opened in ns; nil is the
// host's.
func fetch(ns *netns.NS, at netip.AddrPort) error {
	return eventually(func() error { return fetchOnce(ns, at) })
}

// fetchOnce is one attempt, for servers that must not be reachable.
func fetchOnce(ns *netns.NS, at netip.AddrPort) error {
	c, err := dial(ns, "tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /index.html HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && !strings.HasSuffix(string(got), page) {
		err = fmt.Errorf("%s said %q", at, got)
	}
	return err
}

// fetchCommand is a shell command that fetches the page inside a container, within some time; the
// wget of a static busybox cannot look up names.
func fetchCommand(at netip.AddrPort, within time.Duration) string {
	return fmt.Sprintf(`printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w %.0f %s %d`, within.Seconds(), at.Addr(), at.Port())
}
