package rtnl

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// batch is the number of messages in one send. If all of them fail, the errors fit into a receive
// buffer of the usual size (208 KiB; each takes 768 bytes).
const batch = 128

// The flags of New…, Replace… and Drop….
const (
	ack     = netlink.Acknowledge
	create  = netlink.Acknowledge | netlink.Create | netlink.Excl
	replace = netlink.Acknowledge | netlink.Create | netlink.Replace
)

// An Op is one change for [Conn.Do]. Its text is like a command of ip(8) and begins the error if
// the change fails. Do reports errors of New… and Drop…, so that these can be used in a list of
// arguments. The zero Op changes nothing.
type Op struct {
	text string
	req  netlink.Message // type 0: none
	err  error           // why it cannot be sent
}

// String returns the change as a command like those of ip(8), with links as #index.
func (op Op) String() string { return op.text }

// newOp builds a change of one message.
func newOp(text string, typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte, err error) Op {
	return Op{text: text, req: request(typ, flags, data), err: err}
}

// request returns a message for the kernel.
func request(typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: typ, Flags: flags}, Data: data}
}

// Do sends the changes together, in order, and returns when the kernel has answered all. The kernel
// continues after a change that fails; the errors are joined, each with the change's text. Nothing
// is sent if one of the changes cannot be encoded.
func (c *Conn) Do(ops ...Op) error {
	for _, op := range ops {
		if op.err != nil {
			return fmt.Errorf("%s: %w", op.text, op.err)
		}
	}
	var reqs []netlink.Message
	var texts []string
	var errs []error
	for _, op := range ops {
		if err := fault.Check(op.text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op.text, err))
			break
		}
		if op.req.Header.Type != 0 {
			reqs, texts = append(reqs, op.req), append(texts, op.text)
		}
	}
	for len(reqs) > 0 {
		n := min(batch, len(reqs))
		answers, err := c.c.Batch(reqs[:n], 0)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i, a := range answers {
			if err := asNotExist(a.Err, reqs[i].Header.Type); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", texts[i], err))
			}
		}
		reqs, texts = reqs[n:], texts[n:]
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// check32 returns an error for a number that does not fit into 32 bits without a sign and would be
// truncated.
func check32(numbers ...int) error {
	for _, n := range numbers {
		if uint64(n) > math.MaxUint32 {
			return fmt.Errorf("number %d: %w", n, unix.EINVAL)
		}
	}
	return nil
}

// encode appends the attributes that fn writes to a fixed header.
func encode(header []byte, fn func(ae *netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	fn(ae)
	attrs, err := ae.Encode()
	return append(header, attrs...), err
}

// marshal encodes a message of the library and appends the attributes that fn writes, which the
// library lacks.
func marshal(m encoding.BinaryMarshaler, fn func(ae *netlink.AttributeEncoder)) ([]byte, error) {
	b, err := m.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return encode(b, fn)
}

// nest appends a nested attribute with the attributes that fn writes.
func nest(ae *netlink.AttributeEncoder, typ uint16, fn func(ae *netlink.AttributeEncoder)) {
	ae.Nested(typ, func(nae *netlink.AttributeEncoder) error {
		fn(nae)
		return nil
	})
}

// number reads an attribute of 1, 2 or 4 bytes in host byte order, since kernels differ in the
// length of some; other lengths give 0.
func number(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// cString reads a string that ends with a zero byte or with the attribute.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
