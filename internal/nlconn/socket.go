package nlconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// Timeout is the longest wait for an answer of the kernel. The kernel answers at once, so it only
// guards against hanging. An exchange ends after exchangeTimes times Timeout at the latest,
// whatever is received. Tests set it before they open a socket.
var Timeout = 5 * time.Second

const (
	exchangeTimes = 12
	readSize      = 64 << 10  // bytes; larger than any datagram of the kernel
	plainSend     = 100 << 10 // bytes; fits into the default send buffer
	sendSpace     = 64 << 20  // bytes; the whole batch must fit into the send buffer
)

// A socket is the [netlink.Socket] of the library's connection during one exchange of a [Conn], with the
// descriptor of the Conn. The descriptor is blocking and not registered with the poller of Go's runtime:
// the kernel has the answer when sending returns, so a read does not wait, and a process that lives for
// a few milliseconds starts neither a poller nor a thread for it. With the library's own socket an ADD
// makes 130 futex calls instead of 22 and takes 2 ms more.
type socket struct {
	fd  int
	lib *netlink.Conn
	in  []byte
	end time.Time // time limit of the exchange; zero: none

	// A dump was inconsistent. The kernel may report that in NLMSG_DONE only, which the
	// library does not return.
	interrupted bool
}

//lint:ignore SA1019 the library's own socket is slow in a short process; TestKernelLibrary holds what this relies on
var _ netlink.Socket = (*socket)(nil)

// idle has the sockets that are in no exchange. Creating one seeds a random number generator and allocates
// a large buffer; a verb needs only one for its seven descriptors. A [sync.Pool] would have one for each
// processor on which the verb runs.
var idle struct {
	sync.Mutex
	sockets []*socket
}

// maxIdle is the limit of idle sockets.
const maxIdle = 4

// borrow takes a socket for an exchange on a descriptor. The caller puts it back.
func borrow(fd int) *socket {
	idle.Lock()
	defer idle.Unlock()
	last := len(idle.sockets) - 1
	if last < 0 {
		s := &socket{fd: fd, in: make([]byte, readSize)}
		// NewConn is deprecated, since it was meant for tests only. TestKernelLibrary checks the
		// behaviour that we rely on.
		s.lib = netlink.NewConn(s, 0)
		return s
	}
	s := idle.sockets[last]
	idle.sockets = idle.sockets[:last]
	*s = socket{fd: fd, lib: s.lib, in: s.in}
	return s
}

// putBack ends the use of a borrowed socket.
func (s *socket) putBack() {
	idle.Lock()
	defer idle.Unlock()
	if len(idle.sockets) < maxIdle {
		idle.sockets = append(idle.sockets, s)
	}
}

// open opens a descriptor in a namespace and connects it to the kernel: another process could
// send to one that is not connected.
func open(ns *netns.NS, protocol int, groups uint32) (fd int, err error) {
	if fd, err = ns.Socket(protocol); err != nil {
		return -1, err
	}
	if groups != 0 {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}))
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	if err == nil {
		limit := unix.NsecToTimeval(int64(Timeout))
		err = os.NewSyscallError("setsockopt SO_RCVTIMEO", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	// These make errors or filters more exact, and all else works without them; kernels
	// before 4.20 lack one. NETLINK_CAP_ACK is not among them: the library cannot read an
	// error that it has shortened.
	for _, option := range [...]int{unix.NETLINK_EXT_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
	}
	return fd, nil
}

// Send sends one message.
func (s *socket) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

// SendMessages sends all messages in one datagram; the kernel processes them before the
// call returns. The send buffer must hold them, so it grows for a large batch: without
// limit with CAP_NET_ADMIN on the host, else up to net.core.wmem_max.
func (s *socket) SendMessages(ms []netlink.Message) error {
	size := 0
	for _, m := range ms {
		size += unix.NLMSG_HDRLEN + align(len(m.Data))
	}
	out := make([]byte, 0, size)
	for _, m := range ms {
		if len(m.Data) > math.MaxUint16 { // the length of an attribute has 16 bits
			return fmt.Errorf("request of %d bytes: %w", len(m.Data), unix.EMSGSIZE)
		}
		b, err := m.MarshalBinary()
		if err != nil {
			return err
		}
		out = append(out, b...)
	}
	if len(out) > plainSend && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendSpace) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendSpace)
	}
	for {
		_, err := unix.Write(s.fd, out)
		if err != unix.EINTR {
			return os.NewSyscallError("write", err)
		}
	}
}

// Receive returns the messages of the next datagram. The error is [os.ErrDeadlineExceeded] if none
// arrives within [Timeout], or if the time limit of the exchange has passed.
func (s *socket) Receive() ([]netlink.Message, error) {
	if !s.end.IsZero() && time.Now().After(s.end) {
		return nil, fmt.Errorf("answers without end: %w", os.ErrDeadlineExceeded)
	}
	n, err := retry(func() (int, error) { return unix.Read(s.fd, s.in) })
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil, os.ErrDeadlineExceeded
	case err != nil:
		return nil, os.NewSyscallError("read", err)
	case n == len(s.in):
		return nil, os.NewSyscallError("read", unix.EMSGSIZE) // the rest is lost
	}
	var ms []netlink.Message
	for b := append([]byte(nil), s.in[:n]...); len(b) >= unix.NLMSG_HDRLEN; {
		size := min(align(int(binary.NativeEndian.Uint32(b))), len(b))
		var m netlink.Message
		if err := m.UnmarshalBinary(b[:size]); err != nil {
			return nil, fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
		}
		s.interrupted = s.interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		ms, b = append(ms, m), b[size:]
	}
	return ms, nil
}

// ReceiveIter is Receive for a range loop.
func (s *socket) ReceiveIter() iter.Seq2[netlink.Message, error] { return received(s.Receive) }

func received(receive func() ([]netlink.Message, error)) iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		ms, err := receive()
		if err != nil {
			yield(netlink.Message{}, err)
			return
		}
		for _, m := range ms {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// discard reads the answers that a failed exchange has left. The kernel reports an overflow of the
// receive buffer once, and then drops answers without a report until the buffer is empty; and it starts
// no dump before the previous one is read. The error is os.ErrDeadlineExceeded if there is something to
// read for longer than [Timeout].
func (s *socket) discard() error {
	for end := time.Now().Add(Timeout); time.Now().Before(end); {
		_, _, err := unix.Recvfrom(s.fd, s.in, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
	}
	return os.ErrDeadlineExceeded
}

// Close does nothing: the descriptor is its Conn's.
func (s *socket) Close() error { return nil }

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// align rounds up to the 4 bytes on which messages begin.
func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
