package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// longestPacket is the longest packet that is read, in bytes: a jumbo frame's.
const longestPacket = 9216

// A socket uses the poller of Go's runtime: a goroutine that reads needs no thread.
type socket struct {
	file *os.File
	fd   int           // of file
	to   unix.Sockaddr // multicast destination; nil: not needed
	buf  []byte
}

// newSocket opens a socket in a namespace, and calls setup there.
func newSocket(ns *netns.NS, domain, typ int, setup func(fd int) error) (*socket, error) {
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(domain, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		return setup(fd)
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return &socket{file: os.NewFile(uintptr(fd), "socket"), fd: fd, buf: make([]byte, longestPacket)}, nil
}

// close closes the socket, which would keep the namespace alive.
func (s *socket) close() { s.file.Close() }

func (s *socket) send(b []byte) (err error) {
	if s.to == nil {
		_, err = unix.Write(s.fd, b)
		return os.NewSyscallError("send", err)
	}
	return os.NewSyscallError("sendto", unix.Sendto(s.fd, b, 0, s.to))
}

// receive returns the next packet, which is valid until the next call. The error is
// os.ErrDeadlineExceeded after until, or the context's.
func (s *socket) receive(ctx context.Context, until time.Time) ([]byte, error) {
	if err := s.file.SetDeadline(until); err != nil {
		return nil, err
	}
	// The callback of an earlier call may have run before the deadline was set.
	stop := context.AfterFunc(ctx, func() { s.file.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	n, err := s.file.Read(s.buf)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, io.EOF): // a packet without content
		err = nil
	}
	return s.buf[:n], err
}

// packetSocket opens a socket for whole Ethernet frames, for a link without an IP address: packet(7).
// It receives what filter4 accepts.
func packetSocket(ns *netns.NS, index uint32) (*socket, error) {
	return newSocket(ns, unix.AF_PACKET, unix.SOCK_RAW, func(fd int) error {
		program := filter4()
		err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		if err == nil { // after the filter: without a protocol it receives nothing
			proto := binary.NativeEndian.Uint16([]byte{etherIPv4 >> 8, etherIPv4 & 0xff})
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: int(index)})
		}
		return os.NewSyscallError("packet socket", err)
	})
}

// udpSocket opens a UDP socket on a link, from the client's port of an address to the server's. It is
// connected to the server, unless to is a multicast group.
func udpSocket(ns *netns.NS, link *rtnl.Link, from, to netip.Addr) (*socket, error) {
	domain, local, remote := unix.AF_INET, sockaddr(from, link.Index, clientPort4), sockaddr(to, link.Index, serverPort4)
	if from.Is6() {
		domain, local, remote = unix.AF_INET6, sockaddr(from, link.Index, clientPort6), sockaddr(to, link.Index, serverPort6)
	}
	s, err := newSocket(ns, domain, unix.SOCK_DGRAM, func(fd int) error {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err == nil {
			err = unix.BindToDevice(fd, link.Name)
		}
		if err == nil {
			err = unix.Bind(fd, local)
		}
		if err == nil && !to.IsMulticast() {
			err = unix.Connect(fd, remote)
		}
		return os.NewSyscallError("UDP socket", err)
	})
	if err == nil && to.IsMulticast() {
		s.to = remote
	}
	return s, err
}

// sockaddr returns an address of a UDP socket; index is the link of a link-local address.
func sockaddr(a netip.Addr, index uint32, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: port, ZoneId: index}
}
