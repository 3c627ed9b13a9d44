package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	clientPort4, serverPort4 = 68, 67
	clientPort6, serverPort6 = 546, 547

	// Bytes of headers; that of IP is without options.
	etherHeader, ipHeader, udpHeader = 14, 20, 8

	etherIPv4 = 0x0800 // ETH_P_IP, include/uapi/linux/if_ether.h
)

// An endpoint has the link layer address and the IP address of one end of a packet.
type endpoint struct {
	mac net.HardwareAddr
	ip  netip.Addr
}

// frame4 returns a payload with headers of Ethernet, IPv4 and UDP, from the client's port to the
// server's: RFC 791 section 3.1, RFC 768.
func frame4(from, to endpoint, payload []byte) []byte {
	frame := make([]byte, etherHeader+ipHeader+udpHeader, etherHeader+ipHeader+udpHeader+len(payload))
	copy(frame, to.mac)
	copy(frame[6:], from.mac)
	binary.BigEndian.PutUint16(frame[12:], etherIPv4)
	frame = append(frame, payload...)

	b := frame[etherHeader:]
	b[0] = 4<<4 | ipHeader/4
	b[1] = 0xc0 // CS6, network control
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	b[8], b[9] = 64, unix.IPPROTO_UDP
	copy(b[12:], from.ip.AsSlice())
	copy(b[16:], to.ip.AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:ipHeader]))

	udp := b[ipHeader:]
	binary.BigEndian.PutUint16(udp, clientPort4)
	binary.BigEndian.PutUint16(udp[2:], serverPort4)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	pseudo := sum(unix.IPPROTO_UDP+uint32(len(udp)), b[12:20])
	check := ^sum(uint32(pseudo), udp)
	if check == 0 {
		check = 0xffff // 0 would mean: none
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return frame
}

// sum returns the ones' complement sum of RFC 1071, with an initial value.
func sum(start uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		start += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	for start > 0xffff {
		start = start>>16 + start&0xffff
	}
	return uint16(start)
}

// payload4 returns the payload of a frame to the client's port, and the source link layer address;
// nil if there is none. It does not verify the UDP checksum: hardware may set it later, so it may
// be missing in a packet that has not left the machine.
func payload4(frame []byte) ([]byte, net.HardwareAddr) {
	if len(frame) < etherHeader+ipHeader {
		return nil, nil
	}
	b := frame[etherHeader:]
	if b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return nil, nil
	}
	head, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ipHeader || total < head+udpHeader || total > len(b) || sum(0, b[:head]) != 0xffff {
		return nil, nil
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // a fragment
		return nil, nil
	}
	udp := b[head:total]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != clientPort4 || n < udpHeader || n > len(udp) {
		return nil, nil
	}
	return udp[udpHeader:n], append(net.HardwareAddr(nil), frame[6:12]...)
}

// filter4 returns a classic BPF program: it accepts unfragmented IPv4 UDP packets to the client's
// port. Without it each packet of the interface would wake the daemon.
func filter4() []unix.SockFilter {
	const (
		load8  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		load16 = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	)
	return []unix.SockFilter{
		{Code: load8, K: etherHeader + 9}, // protocol
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 6},
		{Code: load16, K: etherHeader + 6}, // flags and offset
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x3fff, Jt: 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: etherHeader},    // length of the IP header
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: etherHeader + 2}, // destination port
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: clientPort4, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}
