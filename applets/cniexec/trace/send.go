package trace

import (
	"context"
	"errors"
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

// Dial sends the first packet of a connection from ns: the SYN of TCP, the INIT of SCTP, or an empty
// datagram of UDP. The caller closes the socket, which is nil if there is none. If the kernel refuses
// the packet, or lacks SCTP, the error is its errno.
func Dial(ns *netns.NS, proto uint8, to netip.AddrPort) (s *Socket, err error) {
	kind := unix.SOCK_STREAM
	if proto == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
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
	if err == nil && kind == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, nil)
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
	if s.proto != unix.IPPROTO_UDP {
		err = conn.Write(func(fd uintptr) (done bool) {
			done, answered = connected(int(fd))
			return done
		})
	} else {
		err = conn.Read(func(fd uintptr) bool {
			_, answered = unix.Read(int(fd), make([]byte, 1))
			return !errors.Is(answered, unix.EAGAIN)
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

// as4 returns an IPv4 address; zero for another.
func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}
