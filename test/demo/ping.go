package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// ICMP types of echo: RFC 792, RFC 4443 section 4.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// ping sends an ICMP echo request and waits for the reply. It ignores other packets.
func (p *place) ping(to netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(echoRequest4), byte(echoReply4)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", echoRequest6, echoReply6
	}
	c, err := open(p, func() (net.PacketConn, error) { return net.ListenPacket(network, "") })
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeLimit)); err != nil {
		return err
	}
	message := append([]byte{request, 0, 0, 0, 'c', 'n', 0, 1}, "cnibox demo"...)
	// The kernel writes the checksum of ICMPv6, since it includes the addresses.
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	if _, err := c.WriteTo(message, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	b := make([]byte, 256)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return fmt.Errorf("no reply from %s: %w", to, err)
		}
		if n == len(message) && b[0] == reply && bytes.Equal(b[4:n], message[4:]) {
			return nil
		}
	}
}

// checksum is the Internet checksum: RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
