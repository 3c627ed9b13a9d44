package trace

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// A Socket has sent the first packet of a connection.
type Socket struct {
	file  *os.File
	proto uint8
}

// Dial sends the first packet of a connection from ns: the SYN of TCP, an empty datagram of UDP, or
// the INIT of SCTP, which needs CAP_NET_RAW but no SCTP in the kernel. The caller closes the
// socket, which is nil if there is none. If the kernel refuses the packet, the error is its errno.
func Dial(ns *netns.NS, proto uint8, to netip.AddrPort) (s *Socket, err error) {
	kind, payload := unix.SOCK_STREAM, []byte(nil)
	switch proto {
	case unix.IPPROTO_UDP:
		kind = unix.SOCK_DGRAM
	case unix.IPPROTO_SCTP:
		kind, payload = unix.SOCK_RAW, sctpInit(to.Port())
		to = netip.AddrPortFrom(to.Addr(), 0) // the port of a raw socket is the protocol
	}
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: as4(to.Addr())})
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd := -1
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto))
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	if err = unix.Connect(fd, addr); errors.Is(err, unix.EINPROGRESS) {
		err = nil
	}
	if err == nil && kind != unix.SOCK_STREAM {
		_, err = unix.Write(fd, payload)
	}
	return &Socket{os.NewFile(uintptr(fd), "socket"), proto}, err // connected: the poller reports the end of that
}

// Close closes the socket.
func (s *Socket) Close() { s.file.Close() }

// Answer waits for the answer. The error is os.ErrDeadlineExceeded if none has come within a time, the errno of an answer
// that refuses the packet, or the context's.
func (s *Socket) Answer(ctx context.Context, within time.Duration) error {
	if err := s.file.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { s.file.SetDeadline(time.Unix(1, 0)) })()
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	answered := error(nil)
	if s.proto == unix.IPPROTO_TCP {
		err = conn.Write(func(fd uintptr) (done bool) {
			done, answered = connected(int(fd))
			return done
		})
	} else {
		err = conn.Read(func(fd uintptr) bool {
			n, b := 0, make([]byte, sctpRead)
			for {
				if n, answered = unix.Read(int(fd), b); answered != nil || s.proto != unix.IPPROTO_SCTP || !isInit(b[:n]) {
					return !errors.Is(answered, unix.EAGAIN)
				}
			}
		})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return answered
}

// connected reports whether the connection of a socket is made, or has failed.
func connected(fd int) (done bool, err error) {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return true, err
	case errno != 0:
		return true, unix.Errno(errno)
	}
	_, err = unix.Getpeername(fd)
	return err == nil, nil
}

// sctpInit returns an SCTP packet with an INIT chunk, from a port of its own: RFC 9260, 3.1 and
// 3.3.2.
func sctpInit(port uint16) []byte {
	const ephemeral, checksumAt, chunkInit, chunkLen, window = 49152, 8, 1, 20, 1 << 16
	b := binary.BigEndian.AppendUint16(nil, ephemeral+rand.N[uint16](1<<14))
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // no verification tag yet; the checksum
	b = append(b, chunkInit, 0, 0, chunkLen)
	b = binary.BigEndian.AppendUint32(b, rand.Uint32()|1) // the tag of this end, which is not 0
	b = binary.BigEndian.AppendUint32(b, window)
	b = append(b, 0, 1, 0, 1)                           // streams out and in
	b = binary.BigEndian.AppendUint32(b, rand.Uint32()) // the first TSN
	binary.LittleEndian.PutUint32(b[checksumAt:], crc32c(b))
	return b
}

// sctpRead is enough for the headers of an answer, in bytes.
const sctpRead = 128

// isInit reports whether a packet that a raw socket has read is an INIT, as the one of [sctpInit] on lo. Packets of
// IPv4 begin with their header.
func isInit(b []byte) bool {
	const header, chunkInit = 12, 1
	if len(b) > 0 && b[0]>>4 == 4 && len(b) >= 20 {
		b = b[min(len(b), int(b[0]&0x0f)*4):]
	}
	return len(b) > header && b[header] == chunkInit
}

// crc32c returns the checksum of SCTP, RFC 9260, appendix A. hash/crc32 would fill a table at the
// start of every plugin.
func crc32c(b []byte) uint32 {
	const castagnoli = 0x82f63b78 // the polynomial, its lowest bit first
	sum := ^uint32(0)
	for _, c := range b {
		sum ^= uint32(c)
		for range 8 {
			sum = sum>>1 ^ castagnoli&-(sum&1)
		}
	}
	return ^sum
}

// as4 returns an IPv4 address; zero for another.
func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}
