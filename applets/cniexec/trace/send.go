package trace

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
)

// Dial sends the first packet of a connection from ns: the SYN of TCP, or an empty datagram of UDP.
// The caller closes the socket. The error is the errno of the kernel, if it did not take the packet.
func Dial(ns *netns.NS, proto uint8, to netip.AddrPort) (closeSocket func(), err error) {
	family, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: as4(to.Addr())})
	if to.Addr().Is6() {
		family, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	kind := unix.SOCK_STREAM
	if proto == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd := -1
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(proto))
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return func() {}, err
	}
	closeSocket = func() { unix.Close(fd) }
	if err = unix.Connect(fd, addr); errors.Is(err, unix.EINPROGRESS) {
		err = nil
	}
	if err == nil && kind == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, nil)
	}
	return closeSocket, err
}

// as4 is an IPv4 address; another is zero.
func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}
