package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// readSize is the size of the read buffer in bytes. The kernel puts no more
// than 32 KiB into one datagram of a dump, whatever the reader offers.
const readSize = 32 << 10

// dumpTries is how often a dump is asked for when the kernel says that it was
// changed meanwhile (NLM_F_DUMP_INTR).
const dumpTries = 5

// A Conn is a route netlink socket in one network namespace. It may be used
// from any goroutine and any thread; calls take turns.
type Conn struct {
	nl  *netlink.Conn
	raw syscall.RawConn

	mu     sync.Mutex
	seq    uint32 // of the last request sent
	buf    []byte
	events int  // notifications seen, see WaitAddrs
	stale  bool // there may be answers left that nobody read
}

// Dial opens a socket in ns; nil is the namespace of the calling thread. The
// thread stays where it is, and ns may be closed afterwards.
func Dial(ns *NS) (*Conn, error) {
	var conf netlink.Config
	if ns != nil && !ns.entered() {
		conf.NetNS = ns.FD()
	}
	nl, err := netlink.Dial(unix.NETLINK_ROUTE, &conf)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	// Each of these makes errors or filters better and none is needed, so a
	// kernel before 4.20 that refuses one is as good.
	for _, o := range []netlink.ConnOption{
		netlink.ExtendedAcknowledge, netlink.CapAcknowledge, netlink.GetStrictCheck,
	} {
		_ = nl.SetOption(o, true)
	}
	raw, err := nl.SyscallConn()
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	return &Conn{nl: nl, raw: raw, buf: make([]byte, readSize)}, nil
}

// Close gives the socket back.
func (c *Conn) Close() error { return c.nl.Close() }

// A request is one netlink message before it has a number.
type request struct {
	typ, flags uint16
	data       []byte
}

// An answer says how a request ended. Err is the kernel's refusal; changed
// tells that a dump is out of step with itself.
type answer struct {
	err     error
	changed bool
}

// exchange sends the requests in one datagram and reads until the last of them
// was acknowledged, answered or refused. Messages that answer request i go to
// each, whose data is valid during the call alone. The error is about the
// socket; the kernel's verdicts are in the answers.
//
// The kernel works through a datagram in order and reports each refusal, asked
// or not. So the last request alone is acknowledged, and its answer says that
// all before it went well that were not refused: one read, mostly.
// mdlayher/netlink reads a datagram with two system calls and forgets what
// stands behind a refusal, so sending and reading are done here.
func (c *Conn) exchange(reqs []request, each func(i int, m message) error) ([]answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	first := c.seq + 1
	var out []byte
	for i, r := range reqs {
		if i < len(reqs)-1 {
			r.flags &^= unix.NLM_F_ACK
		}
		out = r.append(out, first+uint32(i))
	}
	c.seq += uint32(len(reqs))
	if err := c.send(out); err != nil {
		return nil, fmt.Errorf("netlink send: %w", err)
	}
	answers, err := collect(c.read, reqs, first, func(i int, m message) error {
		if i == notification {
			c.events++
			return nil
		}
		return each(i, m)
	})
	c.stale = err != nil
	return answers, err
}

// drain reads what a failed exchange left behind. The kernel tells once that
// the receive buffer overflowed; then it drops answers silently until the
// buffer is empty. And it starts no dump before the last one was read.
func (c *Conn) drain() {
	for c.stale {
		var err error
		rerr := c.raw.Read(func(fd uintptr) bool {
			_, _, err = unix.Recvfrom(int(fd), c.buf, 0)
			return true
		})
		c.stale = rerr == nil && (err == nil || err == unix.ENOBUFS || err == unix.EINTR)
	}
}

// notification stands for the request of a message that answers none.
const notification = -1

// collect reads until the last request is over; first is the number of the
// first. Answers that nobody waits for any more are dropped.
func collect(read func() ([]byte, error), reqs []request, first uint32, each func(i int, m message) error) ([]answer, error) {
	answers := make([]answer, len(reqs))
	for open := 0; open < len(reqs); { // requests before open are over
		b, err := read()
		if err != nil {
			return nil, fmt.Errorf("netlink receive: %w", err)
		}
		for m, rest, ok := nextMessage(b); ok; m, rest, ok = nextMessage(rest) {
			nth := m.seq - first
			waited := nth >= uint32(open) && nth < uint32(len(reqs))
			switch {
			case m.seq == 0:
				err = each(notification, m)
			case !waited || m.typ == unix.NLMSG_NOOP:
			case m.typ == unix.NLMSG_ERROR || m.typ == unix.NLMSG_DONE:
				a := &answers[nth]
				a.err, a.changed = kernelVerdict(m, reqs[nth].typ), a.changed || interrupted(m)
				open = int(nth) + 1
			default:
				err = each(int(nth), m)
				answers[nth].changed = answers[nth].changed || interrupted(m)
				if m.flags&unix.NLM_F_MULTI == 0 {
					open = int(nth) + 1
				}
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return answers, nil
}

// interrupted reports whether a dump changed under the kernel's hands.
func interrupted(m message) bool { return m.flags&unix.NLM_F_DUMP_INTR != 0 }

// get sends one request without acknowledgement and gives its answers to each.
func (c *Conn) get(r request, each func(m message) error) error {
	answers, err := c.exchange([]request{r}, func(_ int, m message) error { return each(m) })
	if err != nil {
		return err
	}
	return answers[0].err
}

// An exchanger sends requests and reads the answers, as [Conn] does.
type exchanger interface {
	exchange(reqs []request, each func(i int, m message) error) ([]answer, error)
}

// dump collects what decode makes of each answer to r. A dump out of step with
// itself is asked for again; after the last try it is used all the same, since
// it is still right about all that did not change meanwhile.
func dump[T any](c exchanger, r request, decode func(m message) (T, bool, error)) ([]T, error) {
	r.flags |= unix.NLM_F_DUMP
	for try := 1; ; try++ {
		var all []T
		answers, err := c.exchange([]request{r}, func(_ int, m message) error {
			v, wanted, err := decode(m)
			if wanted {
				all = append(all, v)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if !answers[0].changed || try == dumpTries {
			return all, answers[0].err
		}
	}
}

func (c *Conn) send(b []byte) error {
	var err error
	werr := c.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	if werr != nil {
		return werr
	}
	return err
}

// read returns the next datagram of the kernel; it is valid until the next call.
func (c *Conn) read() ([]byte, error) {
	for {
		var n int
		var from unix.Sockaddr
		var err error
		rerr := c.raw.Read(func(fd uintptr) bool {
			for {
				n, from, err = unix.Recvfrom(int(fd), c.buf, unix.MSG_TRUNC)
				if err != unix.EINTR {
					return err != unix.EAGAIN
				}
			}
		})
		if rerr != nil {
			return nil, rerr
		}
		if err != nil {
			return nil, err
		}
		if n > len(c.buf) {
			return nil, fmt.Errorf("datagram of %d bytes: %w", n, unix.EMSGSIZE)
		}
		// Other processes may send to this socket too; they have a port.
		if sa, ok := from.(*unix.SockaddrNetlink); ok && sa.Pid == 0 {
			return c.buf[:n], nil
		}
	}
}

// A message is one message of the kernel, without its header.
type message struct {
	typ, flags uint16
	seq        uint32
	data       []byte
}

// append adds the request with its header, struct nlmsghdr, to b.
func (r request) append(b []byte, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(r.data)))
	b = binary.NativeEndian.AppendUint16(b, r.typ)
	b = binary.NativeEndian.AppendUint16(b, r.flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // the kernel knows our port
	b = append(b, r.data...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// nextMessage takes the first message from a datagram.
func nextMessage(b []byte) (m message, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, false
	}
	length := int(binary.NativeEndian.Uint32(b))
	if length < unix.SizeofNlMsghdr || length > len(b) {
		return m, nil, false
	}
	m = message{
		typ:   binary.NativeEndian.Uint16(b[4:]),
		flags: binary.NativeEndian.Uint16(b[6:]),
		seq:   binary.NativeEndian.Uint32(b[8:]),
		data:  b[unix.SizeofNlMsghdr:length],
	}
	return m, b[min(align(length), len(b)):], true
}

// align rounds up to the four bytes on which netlink messages begin.
func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
