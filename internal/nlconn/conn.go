// Package nlconn is the netlink connection that rtnl and nft share: the library's [netlink.Conn]
// over a blocking socket of our own, several requests in one send with an answer for each, and
// repetition of interrupted dumps. It does not interpret messages.
//
// Use [Conn.Execute] for one request, [Conn.Dump] for a list of objects, [Conn.Batch] for several
// requests. Errors of the kernel are an [Error]; any other is about the socket.
package nlconn

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/netns"
)

// dumpTries is how often an interrupted dump is tried.
const dumpTries = 5

// ErrInterrupted is returned by [Conn.Dump], with the last answer, if the objects kept changing.
// The answer is right about all objects that did not change.
var ErrInterrupted = errors.New("it keeps changing while it is read")

// A Conn is a connection to the kernel, from [Open] or [Listen]. It may be used from any goroutine
// and any thread; calls are serialized. After Close all calls fail with [os.ErrClosed].
type Conn struct {
	mu sync.Mutex
	fd int // -1: closed

	stale       bool // there may be unread answers
	interrupted bool // a dump since the last [Conn.Dump] was inconsistent
}

// Open connects to a netlink protocol in ns, such as unix.NETLINK_ROUTE. ns may be closed afterwards.
func Open(ns *netns.NS, protocol int) (*Conn, error) { return Listen(ns, protocol, 0) }

// Listen connects to a netlink protocol in ns with a socket of its own that receives the notifications
// of groups, a bit set such as RTMGRP_*; see [Conn.Wait]. ns may be closed afterwards.
func Listen(ns *netns.NS, protocol int, groups uint32) (*Conn, error) {
	fd, err := open(ns, protocol, groups)
	if err != nil {
		return nil, err
	}
	return &Conn{fd: fd}, nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return os.ErrClosed
	}
	err := unix.Close(c.fd)
	c.fd = -1
	return os.NewSyscallError("close", err)
}

// Within runs fn with the descriptor, which stays open meanwhile.
func (c *Conn) Within(fn func(fd int) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return os.ErrClosed
	}
	return fn(c.fd)
}

// An Error is an errno of the kernel about one request, with the text of the extended
// acknowledgement if there is one. errors.Is finds the errno in it.
type Error struct {
	Errno unix.Errno
	Text  string // empty: the kernel did not explain
}

// Error returns the errno's text and, after a colon, the kernel's if there is one.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return e.Errno.Error() + ": " + e.Text
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// An Answer is the answer to one request. The zero value is an acknowledgement.
type Answer struct {
	Messages []netlink.Message
	Err      error // an [Error]; nil: acknowledged
}

// Batch sends the requests in one datagram and returns an answer for each. The error is
// about the socket; the kernel's errors are in the answers, and the kernel continues with the next
// request after one. ends is the number of requests at each end that the kernel does not answer: 1 for
// nf_tables, with NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END, where an error of the whole batch has
// the sequence number of the first; else 0. The answer to a request with [netlink.Echo] has the
// created object.
//
// The kernel processes a datagram in order and reports every error, even of requests without
// [netlink.Acknowledge]. So only the last request asks for an acknowledgement: when its answer arrives,
// all earlier requests without an error have succeeded. Mostly this takes one read.
func (c *Conn) Batch(reqs []netlink.Message, ends int) ([]Answer, error) {
	answers, err := c.exchange(reqs, ends)
	count(answers)
	return answers, err
}

// count counts an exchange for tests.
func count(answers []Answer) {
	fault.Done(fault.Requests, len(answers))
	for _, a := range answers {
		fault.Done(fault.Answers, len(a.Messages))
		for _, m := range a.Messages {
			fault.Done(fault.Received, len(m.Data))
		}
	}
}

// exchange is [Conn.Batch] that is not counted.
func (c *Conn) exchange(reqs []netlink.Message, ends int) ([]Answer, error) {
	first, last := ends, len(reqs)-1-ends
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil, os.ErrClosed
	}
	s := borrow(c.fd)
	defer s.putBack()
	if c.stale {
		if err := s.discard(); err != nil {
			return nil, fmt.Errorf("netlink: answers to earlier requests: %w", err)
		}
		c.stale = false
	}
	reqs = append([]netlink.Message(nil), reqs...)
	for i := range reqs {
		reqs[i].Header.Flags |= netlink.Request
		if i != last {
			reqs[i].Header.Flags &^= netlink.Acknowledge
		}
	}
	sent, err := s.lib.SendMessages(reqs)
	if err != nil {
		return nil, fmt.Errorf("netlink send: %w", cause(err))
	}
	answers := make([]Answer, len(sent))
	s.end = time.Now().Add(exchangeTimes * Timeout)
	err = collect(s.lib, sent, answers, first, last)
	c.stale, c.interrupted = err != nil, c.interrupted || s.interrupted
	return answers, err
}

// Execute sends one request and returns the messages of its answer: none for the acknowledgement of a
// change, the objects for a get, which is best sent without [netlink.Acknowledge].
func (c *Conn) Execute(req netlink.Message) ([]netlink.Message, error) {
	answers, err := c.Batch([]netlink.Message{req}, 0)
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		return nil, err
	}
	return answers[0].Messages, nil
}

// Dump returns all objects of the request. It repeats an interrupted dump; see [ErrInterrupted].
func (c *Conn) Dump(req netlink.Message) ([]netlink.Message, error) {
	ms, err := dump(func() ([]netlink.Message, bool, error) {
		req.Header.Flags |= netlink.Dump
		answers, err := c.exchange([]netlink.Message{req}, 0)
		if err != nil {
			return nil, false, err
		}
		// netfilter reports an interruption between two parts of a dump as EINTR.
		err, interrupted := answers[0].Err, c.wasInterrupted()
		if errors.Is(err, unix.EINTR) {
			err, interrupted = nil, true
		}
		return answers[0].Messages, interrupted, err
	})
	count([]Answer{{Messages: ms}})
	return ms, err
}

// dump repeats get until its answer was not interrupted.
func dump(get func() ([]netlink.Message, bool, error)) ([]netlink.Message, error) {
	for try := 1; ; try++ {
		ms, interrupted, err := get()
		switch {
		case err != nil:
			return nil, err
		case !interrupted:
			return ms, nil
		case try == dumpTries:
			return ms, ErrInterrupted
		}
	}
}

// wasInterrupted reports whether a dump since the last call was inconsistent.
func (c *Conn) wasInterrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.interrupted
	c.interrupted = false
	return was
}

// collect reads until there is an acknowledgement, an answer or an error for the last request.
// Answers to earlier exchanges are dropped.
func collect(lib *netlink.Conn, sent []netlink.Message, answers []Answer, first, last int) error {
	for open := first; open <= last; { // requests before open have their answer
		ms, err := lib.Receive()
		var op *netlink.OpError
		if errors.As(err, &op) && op.Sequence != 0 {
			i := int(op.Sequence - sent[0].Header.Sequence)
			if i < 0 || i >= len(sent) || i < open && i >= first {
				continue
			}
			answers[i].Err = kernelError(op)
			if i < first || i > last { // an error of the whole batch
				return nil
			}
			open = i + 1
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink receive: %w", cause(err))
		}
		if len(ms) == 0 && sent[last].Header.Flags&netlink.Dump == netlink.Dump {
			return nil // an empty dump
		}
		open = take(ms, sent, answers, open, last)
	}
	return nil
}

// take adds messages to the answers of their requests and returns the first request that has
// no complete answer. The library returns a dump only when it is complete.
func take(ms, sent []netlink.Message, answers []Answer, open, last int) int {
	for _, m := range ms {
		i := int(m.Header.Sequence - sent[0].Header.Sequence)
		switch {
		case i < open || i > last || m.Header.Type == netlink.Noop:
		case m.Header.Type == netlink.Error: // acknowledged
			open = i + 1
		default:
			answers[i].Messages = append(answers[i].Messages, m)
			if m.Header.Flags&netlink.Multi == 0 && sent[i].Header.Flags&netlink.Acknowledge == 0 {
				open = i + 1
			}
		}
	}
	if n := len(ms); n > 0 && ms[n-1].Header.Flags&netlink.Multi != 0 {
		if i := int(ms[n-1].Header.Sequence - sent[0].Header.Sequence); i >= open && i <= last {
			open = i + 1
		}
	}
	return open
}

// kernelError turns a library's error into an [Error], if it has an errno.
func kernelError(op *netlink.OpError) error {
	var errno unix.Errno
	if !errors.As(op.Err, &errno) {
		return op
	}
	return &Error{Errno: errno, Text: op.Message}
}

// cause removes the name of the library's function from an error.
func cause(err error) error {
	var op *netlink.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
