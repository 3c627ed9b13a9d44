package netlink

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long the kernel may be silent while an answer is due. It answers at once,
// so this only guards against hanging. An exchange ends after exchangeTimes that at the
// latest, whatever comes in. Tests set it before they open a socket.
var Patience = 5 * time.Second

const (
	exchangeTimes = 12
	readSize      = 64 << 10   // bytes; more than the kernel puts into one datagram
	plainSend     = 100 << 10  // bytes; what fits without asking for more
	sendSpace     = 64 << 20   // bytes; a batch must fit into the send buffer at once
	longestData   = 64<<10 - 1 // bytes; no attribute in it can be longer than its length can say
)

// A Socket is a netlink socket. It may be used from any goroutine and any
// thread; calls take turns.
//
// The descriptor blocks and is unknown to the poller of Go's runtime: the
// kernel has the answer when sending returns, so nothing ever waits, and a
// process that lives for a few milliseconds starts neither a poller nor a
// thread for it.
type Socket struct {
	mu  sync.Mutex
	fd  int    // -1: closed
	seq uint32 // of the last request sent
	in  []byte

	stale bool // there may be answers left that nobody read
}

// Open opens a socket of a netlink protocol, unix.NETLINK_ROUTE for one. It is
// opened by way of within, which runs the function that it is given inside
// the namespace wanted.
func Open(protocol int, within func(open func() error) error) (*Socket, error) {
	return open(protocol, 0, within)
}

// Listen opens a socket that gets the notifications of groups, a bit set of
// RTMGRP_* or the like; see [Socket.Wait].
func Listen(protocol int, groups uint32, within func(open func() error) error) (*Socket, error) {
	return open(protocol, groups, within)
}

// open makes the socket by way of within. No groups are no notifications. The
// errors are those of the system calls as they come: unix.EPROTONOSUPPORT is a
// kernel without the protocol.
func open(protocol int, groups uint32, within func(open func() error) error) (*Socket, error) {
	s := &Socket{fd: -1}
	err := within(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err == nil && groups != 0 {
		err = unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	}
	if err == nil {
		// The kernel's own port. A process may send to our socket as well; to one
		// that is connected it cannot.
		err = unix.Connect(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		limit := unix.NsecToTimeval(int64(Patience))
		err = unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	// Each of these makes errors or filters better and none is needed, so a
	// kernel before 4.20 that refuses one is as good.
	for _, option := range [...]int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1)
	}
	s.in = make([]byte, readSize)
	return s, nil
}

// Close gives the socket back. A closed one answers with os.ErrClosed.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}

// Within runs fn with the descriptor, which stays open meanwhile.
func (s *Socket) Within(fn func(fd int) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	return fn(s.fd)
}

// send sends all messages at once; the kernel works through them before the
// call returns. The buffer must hold them, so it grows for a big batch:
// without limit with privilege on the host, else up to net.core.wmem_max.
func (s *Socket) send(b []byte) error {
	if s.fd < 0 {
		return os.ErrClosed
	}
	if len(b) > plainSend && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendSpace) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendSpace)
	}
	for {
		_, err := unix.Write(s.fd, b)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("netlink send: %w", err)
		}
	}
}

// read returns the next datagram; it is valid until the next call.
func (s *Socket) read() ([]byte, error) { return s.readUntil(time.Now().Add(Patience)) }

// readUntil is read, with os.ErrDeadlineExceeded from some time on even if there is more.
func (s *Socket) readUntil(end time.Time) ([]byte, error) {
	if s.fd < 0 {
		return nil, os.ErrClosed
	}
	if time.Now().After(end) {
		return nil, fmt.Errorf("netlink receive: answers without end: %w", os.ErrDeadlineExceeded)
	}
	n, err := unix.Read(s.fd, s.in)
	for err == unix.EINTR {
		n, err = unix.Read(s.fd, s.in)
	}
	switch {
	case err == unix.EAGAIN:
		err = os.ErrDeadlineExceeded
	case err == nil && n == len(s.in):
		err = unix.EMSGSIZE // the rest is lost
	}
	if err != nil {
		return nil, fmt.Errorf("netlink receive: %w", err)
	}
	return s.in[:n], nil
}
