package netlink

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dumpTries is how often a dump is asked for when the kernel says that it was
// changed meanwhile.
const dumpTries = 5

// ErrChanged is returned by [Socket.Dump] when what was read kept changing.
// What was given out is still right about all that did not change.
var ErrChanged = errors.New("it keeps changing while it is read")

// An Answer says how a request ended. Err is the kernel's refusal, an
// [Error]; Changed tells that a dump is out of step with itself.
type Answer struct {
	Err     error
	Changed bool
}

// Exchange sends the requests in one datagram and reads until the last of
// them was acknowledged, answered or refused. Messages that answer request i
// go to each. The error is about the socket, or comes from each; the kernel's
// verdicts are in the answers, of which there is one for each request, also
// with an error.
//
// The kernel works through a datagram in order and reports each refusal, asked
// or not. So the last request alone is acknowledged, and its answer says that
// all before it went well that were not refused: one read, mostly.
func (s *Socket) Exchange(reqs []Request, each func(i int, m Message) error) ([]Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.drain(); err != nil {
		return make([]Answer, len(reqs)), err
	}
	answers, last := make([]Answer, len(reqs)), awaited(reqs)
	if s.seq+uint32(len(reqs)) < s.seq {
		s.seq = 0 // the number 0 is for notifications
	}
	first := s.seq + 1
	size := 0
	for _, r := range reqs {
		size += unix.SizeofNlMsghdr + align(len(r.Data))
	}
	out := make([]byte, 0, size)
	for i, r := range reqs {
		if len(r.Data) > longestData {
			return answers, fmt.Errorf("netlink request of %d bytes: %w", len(r.Data), unix.EMSGSIZE)
		}
		if i != last {
			r.Flags &^= unix.NLM_F_ACK
		}
		out = r.append(out, first+uint32(i))
	}
	s.seq += uint32(len(reqs))
	if err := s.send(out); err != nil {
		return answers, err
	}
	end := time.Now().Add(exchangeTimes * Patience)
	err := collect(func() ([]byte, error) { return s.readUntil(end) }, reqs, answers, first, each)
	s.stale = err != nil
	return answers, err
}

// drain reads what a failed exchange left behind. The kernel tells once that
// the receive buffer overflowed; then it drops answers silently until the
// buffer is empty. And it starts no dump before the last one was read.
func (s *Socket) drain() error {
	for end := time.Now().Add(Patience); s.stale; {
		if time.Now().After(end) {
			return fmt.Errorf("netlink receive: left-over answers without end: %w", os.ErrDeadlineExceeded)
		}
		ready := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 0)
		s.stale = n > 0 || err == unix.EINTR
		if n > 0 {
			_, _ = unix.Read(s.fd, s.in) // also fetches a pending error
		}
	}
	return nil
}

// awaited returns the place of the request whose answer is the last; -1 if
// none is answered.
func awaited(reqs []Request) int {
	last := len(reqs) - 1
	for last >= 0 && reqs[last].Frame {
		last--
	}
	return last
}

// collect reads until the last request is over; first is the number of the
// first. Answers that nobody waits for any more are dropped.
func collect(read func() ([]byte, error), reqs []Request, answers []Answer, first uint32, each func(i int, m Message) error) error {
	last := awaited(reqs)
	for open := 0; open <= last; { // requests before open are over
		b, err := read()
		if err != nil {
			return err
		}
		for m, rest, ok := next(b); ok; m, rest, ok = next(rest) {
			nth := m.Seq - first
			if m.Seq == 0 || nth < uint32(open) || nth >= uint32(len(reqs)) || m.Type == unix.NLMSG_NOOP {
				continue
			}
			a := &answers[nth]
			a.Changed = a.Changed || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE:
				a.Err = verdict(m)
				open = int(nth) + 1
				if reqs[nth].Frame {
					return nil
				}
			default:
				if m.Flags&unix.NLM_F_MULTI == 0 {
					open = int(nth) + 1
				}
				if err := each(int(nth), m); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Get sends one request and gives its answers to each, without acknowledgement.
func (s *Socket) Get(r Request, each func(m Message) error) error {
	answers, err := s.Exchange([]Request{r}, func(_ int, m Message) error { return each(m) })
	if err != nil {
		return err
	}
	return answers[0].Err
}

// Dump asks for all objects that r is about. A dump out of step with itself
// is asked for again; messages go to each when there is a good one, or, with
// [ErrChanged] after them, when there was none.
func (s *Socket) Dump(r Request, each func(m Message) error) error {
	return dump(s.Exchange, r, each)
}

// dump is Dump over a function like Exchange.
func dump(exchange func([]Request, func(int, Message) error) ([]Answer, error), r Request, each func(m Message) error) error {
	r.Flags |= unix.NLM_F_DUMP
	var all []Message
	var changed bool
	for range dumpTries {
		all = all[:0]
		answers, err := exchange([]Request{r}, func(_ int, m Message) error {
			m.Data = append([]byte(nil), m.Data...)
			all = append(all, m)
			return nil
		})
		if err != nil {
			return err
		}
		// EINTR is how netfilter says it between two parts of a dump.
		changed = answers[0].Changed || errors.Is(answers[0].Err, unix.EINTR)
		if changed {
			continue
		}
		if answers[0].Err != nil {
			return answers[0].Err
		}
		break
	}
	for _, m := range all {
		if err := each(m); err != nil {
			return err
		}
	}
	if changed {
		return ErrChanged
	}
	return nil
}
