package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
)

// Announce tells all hosts on the link that the addresses are found at mac
// from now on: by a gratuitous ARP request for IPv4, by an unsolicited
// neighbour advertisement for IPv6. A host that knew an address by another mac
// takes the new one at once. The link must be up; the errors are joined.
func (ns *NS) Announce(index uint32, mac net.HardwareAddr, addrs []netip.Addr) error {
	if len(mac) != 6 {
		return fmt.Errorf("announce: hardware address %q is not of Ethernet", mac)
	}
	if len(addrs) == 0 {
		return nil
	}
	return ns.enter(func() error {
		// Protocol 0: nothing is received.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("announce: packet socket: %w", err)
		}
		defer unix.Close(fd)
		var errs []error
		for _, a := range addrs {
			if err := announce(fd, index, mac, a.Unmap().WithZone("")); err != nil {
				errs = append(errs, fmt.Errorf("announce %s: %w", a, err))
			}
		}
		return errors.Join(errs...)
	})
}

func announce(fd int, index uint32, mac net.HardwareAddr, a netip.Addr) error {
	var frame []byte
	switch {
	case a.Is4():
		frame = gratuitousARP(mac, a)
	case a.Is6():
		frame = unsolicitedNA(mac, a)
	default:
		return unix.EINVAL
	}
	if err := fault.Check("announce " + a.String()); err != nil {
		return err
	}
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: int(index), Halen: 6})
}

// ethernet returns a frame's header.
func ethernet(dst [6]byte, src net.HardwareAddr, protocol uint16) []byte {
	b := append(dst[:], src...)
	return binary.BigEndian.AppendUint16(b, protocol)
}

// gratuitousARP returns the announcement of RFC 5227, section 2.3: a request
// whose sender and target are the address.
func gratuitousARP(mac net.HardwareAddr, a netip.Addr) []byte {
	ip := a.AsSlice()
	b := ethernet([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP)
	b = append(b, 0, 1, 8, 0, 6, 4, 0, 1) // Ethernet, IPv4, lengths of both, request
	b = append(append(b, mac...), ip...)
	return append(append(b, 0, 0, 0, 0, 0, 0), ip...)
}

const (
	icmpv6                = 58  // next header
	neighborAdvertisement = 136 // ICMPv6 type, RFC 4861 section 4.4
	naLength              = 32  // bytes, with the option below
	override              = 0x20
	targetLinkLayer       = 2 // option, RFC 4861 section 4.6.1
)

// unsolicitedNA returns the announcement of RFC 4861, section 7.2.6.
func unsolicitedNA(mac net.HardwareAddr, a netip.Addr) []byte {
	src, all := a.As16(), netip.IPv6LinkLocalAllNodes().As16()
	na := make([]byte, 0, naLength)
	na = append(na, neighborAdvertisement, 0, 0, 0, override, 0, 0, 0)
	na = append(na, src[:]...)
	na = append(append(na, targetLinkLayer, 1), mac...) // length in units of 8 bytes
	binary.BigEndian.PutUint16(na[2:], icmpv6Checksum(src, all, na))

	b := ethernet([6]byte{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6)
	b = append(b, 0x60, 0, 0, 0, 0, naLength, icmpv6, 255) // receivers drop another hop limit
	b = append(append(b, src[:]...), all[:]...)
	return append(b, na...)
}

// icmpv6Checksum sums a message of even length with its pseudo header, RFC 8200
// section 8.1.
func icmpv6Checksum(src, dst [16]byte, msg []byte) uint16 {
	sum := uint32(len(msg)) + icmpv6
	for _, part := range [][]byte{src[:], dst[:], msg} {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
