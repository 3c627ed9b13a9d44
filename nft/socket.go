package nft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/rtnl"
)

const (
	answerTime  = 5         // seconds; the kernel answers at once, so this only guards against hanging
	receiveSize = 64 << 10  // bytes; more than the kernel puts into one datagram of a dump
	dumpTries   = 5         // a dump that the kernel calls inconsistent is begun again
	sendSpace   = 64 << 20  // bytes; a batch must fit into the send buffer at once
	plainSend   = 100 << 10 // bytes; what fits without asking for more
	firstSeq    = uint32(1) // of the message that begins a batch
	nfTables    = unix.NFNL_SUBSYS_NFTABLES << 8
	ctNetlink   = unix.NFNL_SUBSYS_CTNETLINK << 8
	headerBytes = unix.NLMSG_HDRLEN + 4 // netlink header and struct nfgenmsg
)

// A sock is a netlink socket of the netfilter family.
//
// It is used bare: a batch is one send and one answer when only its last
// message asks for an acknowledgement, and the sequence number of an error
// tells which of its steps the kernel refused.
type sock struct {
	fd  int
	seq uint32
	in  []byte
}

// dial opens a socket in ns; nil is the current namespace. Only the opening
// happens there.
func dial(ns *rtnl.NS) (*sock, error) {
	s := &sock{seq: firstSeq, in: make([]byte, receiveSize)}
	open := func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	}
	err := error(nil)
	if ns == nil {
		err = open()
	} else {
		err = ns.Do(open)
	}
	if err != nil {
		return nil, fmt.Errorf("netfilter socket (kernel option CONFIG_NETFILTER_NETLINK): %w", err)
	}
	unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime})
	unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1) // older kernels do without
	return s, nil
}

// close does not wait for the end of the close call. After a deletion the
// kernel keeps that call waiting until no packet can use the deleted
// elements any more, some 10 ms, in which the caller may go on.
func (s *sock) close() { go unix.Close(s.fd) }

// send sends all messages at once; the kernel takes them one by one before
// the call returns. The buffer must hold them, so it grows for a big batch:
// without limit with privilege on the host, else up to net.core.wmem_max.
func (s *sock) send(b []byte) error {
	if len(b) > plainSend {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendSpace) != nil {
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendSpace)
		}
	}
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err != nil {
		return os.NewSyscallError("sendto", err)
	}
	return nil
}

// receive calls fn with each message of one datagram: its type, flags,
// sequence number and payload, until fn says that it has seen the last.
func (s *sock) receive(fn func(typ, flags uint16, seq uint32, data []byte) (last bool)) (bool, error) {
	n, _, err := unix.Recvfrom(s.fd, s.in, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(s.fd, s.in, 0)
	}
	if err != nil {
		return false, os.NewSyscallError("recvfrom", err)
	}
	for b := s.in[:n]; len(b) >= unix.NLMSG_HDRLEN; {
		size := int(ne.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return false, errors.New("netfilter: message cut short")
		}
		if fn(ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]) {
			return true, nil
		}
		b = b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return false, nil
}

// errno returns what an NLMSG_ERROR or NLMSG_DONE says; nil is an acknowledgement.
func errno(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(ne.Uint32(data)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

// ask sends a request and calls fn with the attributes of each message that
// answers it. An object that is not there is os.ErrNotExist.
func (s *sock) ask(typ, flags uint16, family byte, body func(*buf), fn func(data []byte)) error {
	return s.askFamily(typ, flags, family, body, func(_ byte, data []byte) { fn(data) })
}

// askFamily is ask for those who need the family of what answers.
func (s *sock) askFamily(typ, flags uint16, family byte, body func(*buf), fn func(family byte, data []byte)) error {
	for range dumpTries {
		again, err := s.askOnce(typ, flags, family, body, fn)
		if !again {
			return err
		}
	}
	return errors.New("netfilter: the rule set keeps changing while it is read")
}

// askOnce is one try of ask; again says that a dump saw two states of the
// rule set. Answers are collected first, so that such a dump leaves no trace.
func (s *sock) askOnce(typ, flags uint16, family byte, body func(*buf), fn func(byte, []byte)) (again bool, err error) {
	s.seq++
	seq := s.seq
	b := buf(make([]byte, 0, 256))
	at := b.open(typ, unix.NLM_F_REQUEST|flags, seq, family, 0)
	if body != nil {
		body(&b)
	}
	b.close(at)
	if err := s.send(b); err != nil {
		return false, err
	}
	var got []([]byte)
	answer := func(typ, fl uint16, nr uint32, data []byte) bool {
		if nr != seq {
			return false
		}
		again = again || fl&unix.NLM_F_DUMP_INTR != 0
		switch typ {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			err = errno(data)
			return true
		}
		if len(data) >= 4 {
			got = append(got, append([]byte(nil), data...))
		}
		return flags&unix.NLM_F_DUMP == 0
	}
	for {
		last, rerr := s.receive(answer)
		if rerr != nil {
			return false, rerr
		}
		if last {
			break
		}
	}
	// EINTR: the rule set changed between two parts of a dump.
	if again = again || errors.Is(err, unix.EINTR); again || err != nil {
		return again, err
	}
	for _, m := range got {
		fn(m[0], m[4:])
	}
	return false, nil
}
