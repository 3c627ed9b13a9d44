package main

import (
	"context"
	"encoding/binary"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Offsets of the message's fields in bytes (RFC 2131, section 2), and option codes (RFC 2132).
const (
	atOp, atYourAddress, atHardware, atOptions = 0, 16, 28, 240

	optMask, optTime, optKind, optServer, optEnd = 1, 51, 53, 54, 255
)

// serveDHCP serves DHCP on the bridge until it is closed. It leases one address per MAC address for
// an hour, without checking whether it is in use. All its replies are broadcast.
func (n *network) serveDHCP() (c net.PacketConn, err error) {
	onBridge := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		controlErr := raw.Control(func(fd uintptr) {
			if err = unix.BindToDevice(int(fd), "bench0"); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			}
		})
		if err == nil {
			err = controlErr
		}
		return err
	}}
	err = n.host.Do(func() (err error) {
		c, err = onBridge.ListenPacket(context.Background(), "udp4", ":67")
		return err
	})
	if err == nil {
		go answer(c)
	}
	return c, err
}

// answer replies until the socket is closed.
func answer(c net.PacketConn) {
	leased := map[[6]byte]uint16{}
	clients := &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
	for b := make([]byte, 1500); ; {
		size, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if r := reply(b[:size], leased); r != nil {
			c.WriteTo(r, clients)
		}
	}
}

// reply offers an address on DHCPDISCOVER and acknowledges it on DHCPREQUEST. For other messages
// and for invalid ones it returns nil.
func reply(m []byte, leased map[[6]byte]uint16) []byte {
	if len(m) < atOptions {
		return nil
	}
	kind := map[byte]byte{1: 2, 3: 5}[option(m[atOptions:], optKind)] // RFC 2132, section 9.6
	if kind == 0 {
		return nil
	}
	card := [6]byte(m[atHardware:])
	if leased[card] == 0 {
		leased[card] = uint16(len(leased) + 10)
	}
	r := append([]byte(nil), m[:atOptions]...)
	r[atOp] = 2
	address := append(r[:atYourAddress], 10, 243)
	binary.BigEndian.AppendUint16(address, leased[card])
	return append(r, optKind, 1, kind, optServer, 4, 10, 243, 0, 1,
		optMask, 4, 255, 255, 0, 0, optTime, 4, 0, 0, 0x0e, 0x10, optEnd)
}

// option returns the first byte of an option, or 0 if it is absent.
func option(list []byte, code byte) byte {
	for len(list) > 2 && list[0] != optEnd {
		switch n := int(list[1]); {
		case list[0] == 0: // padding
			list = list[1:]
		case len(list) < 2+n:
			return 0
		case list[0] == code && n > 0:
			return list[2]
		default:
			list = list[2+n:]
		}
	}
	return 0
}
