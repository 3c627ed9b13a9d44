package rtnl

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/netlink"
)

// batch is how many messages are sent at once. If all are refused, the refusals
// fit into a receive buffer of the usual size (208 KiB; each takes 768 bytes).
const batch = 128

// What New… and Drop… ask for besides their acknowledgement.
const (
	ack    = unix.NLM_F_ACK
	create = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL

	replace = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

// An Op is one change, ready to be sent with [Conn.Do]. Its text is like a
// line of ip(8) and begins the error if the change is refused. What New… and
// Drop… find wrong is kept for Do to report, so that they can stand in a list
// of arguments. The zero Op changes nothing.
type Op struct {
	text string
	req  netlink.Request // type 0: none
	err  error           // why it cannot be sent
}

// String returns the change as a line like those of ip(8), links by #index.
func (op Op) String() string { return op.text }

// newOp builds a change of one message.
func newOp(text string, typ, flags uint16, data []byte, err error) Op {
	return Op{text: text, req: netlink.Request{Type: typ, Flags: flags, Data: data}, err: err}
}

// Do sends the changes at once, in order, and returns when the kernel has
// answered all. A refused change does not keep it from doing those behind it;
// the errors are joined, each with the change's text. Nothing is sent if
// one of the changes cannot be encoded.
func (c *Conn) Do(ops ...Op) error {
	for _, op := range ops {
		if op.err != nil {
			return fmt.Errorf("%s: %w", op.text, op.err)
		}
	}
	var reqs []netlink.Request
	var texts []string
	var errs []error
	for _, op := range ops {
		if err := fault.Check(op.text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op.text, err))
			break
		}
		if op.req.Type != 0 {
			reqs, texts = append(reqs, op.req), append(texts, op.text)
		}
	}
	for len(reqs) > 0 {
		n := min(batch, len(reqs))
		answers, err := c.exchange(reqs[:n], func(int, netlink.Message) error { return nil })
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i, a := range answers {
			if a.Err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", texts[i], a.Err))
			}
		}
		reqs, texts = reqs[n:], texts[n:]
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// fit32 is an error for a number that 32 bits without a sign cannot hold, and
// that would arrive as another one.
func fit32(numbers ...int) error {
	for _, n := range numbers {
		if uint64(n) > math.MaxUint32 {
			return fmt.Errorf("number %d: %w", n, unix.EINVAL)
		}
	}
	return nil
}

// encode puts attributes behind a fixed header.
func encode(header []byte, attrs func(b *netlink.Buf)) []byte {
	b := netlink.Buf(header)
	attrs(&b)
	return b
}
