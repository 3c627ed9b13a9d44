// Package wire sends what google/nftables encodes to nf_tables, and says which change the kernel has rejected, and why that may
// be: the library's own Flush cannot.
package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/nlconn"
)

const (
	// Tables is the subsystem nf_tables in the upper byte of message types, and HeaderLen the length of a struct nfgenmsg in
	// bytes: include/uapi/linux/netfilter/nfnetlink.h.
	Tables    = unix.NFNL_SUBSYS_NFTABLES << 8
	HeaderLen = 4
)

// Encode returns the attributes that fn writes, with numbers in network byte order, as nf_tables
// expects.
func Encode(fn func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if fn != nil {
		fn(ae)
	}
	return ae.Encode()
}

// Message builds a request.
func Message(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	attrs, err := Encode(body)
	if err != nil {
		return netlink.Message{}, fmt.Errorf("netfilter: %w", err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, nil
}

// A Step is one message of a batch: its subject, for the error if the kernel rejects it; flags and
// data that the library does not write; and the function that receives the handle of the new rule.
type Step struct {
	What  string              // "table inet cnibox"
	Needs string              // kernel options without which the kernel rejects it; may be empty
	Flags netlink.HeaderFlags // in addition to the library's
	Made  func(handle uint64) // may be nil
	Data  []byte              // replaces the library's data where the library cannot encode all; nil: the library's
}

// A Batch collects changes that the kernel applies all together or not at all. The library encodes
// the messages and [Batch.Commit] sends them. The zero value is empty.
type Batch struct {
	conn  nftables.Conn // has no socket
	steps []Step        // one for each message
	err   error         // of writing
}

// Add returns the library's connection; the caller calls one of its methods, which adds one
// message.
func (t *Batch) Add(s Step) *nftables.Conn {
	t.steps = append(t.steps, s)
	return &t.conn
}

// Fail keeps the first error of such a method.
func (t *Batch) Fail(err error) { t.err = cmp.Or(t.err, err) }

// Messages returns the encoded messages between NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END.
func (t *Batch) Messages() (ms []netlink.Message, err error) {
	t.conn.TestDial = func(out []netlink.Message) ([]netlink.Message, error) {
		ms = out
		return nil, io.EOF // as if all were acknowledged
	}
	if err := cmp.Or(t.err, t.conn.Flush()); err != nil {
		return nil, err
	}
	for i, m := range ms {
		ms[i].Header = netlink.Header{Type: m.Header.Type, Flags: m.Header.Flags &^ netlink.Echo}
		if i > 0 && i <= len(t.steps) {
			s := t.steps[i-1]
			ms[i].Header.Flags |= s.Flags
			if s.Data != nil {
				ms[i].Data = s.Data
			}
			if s.Made != nil {
				ms[i].Header.Flags |= netlink.Echo
			}
		}
	}
	return ms, nil
}

// Commit sends the batch and waits for the acknowledgements. The error is that of the first
// rejected step, an [*Error]. An error about the whole batch arrives as the error of its first message.
func (t *Batch) Commit(nl *nlconn.Conn) error {
	if len(t.steps) == 0 {
		return nil
	}
	if err := fault.Check("nft batch"); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	ms, err := t.Messages()
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	fault.Done(fault.Transactions, 1)
	answers, err := nl.Batch(ms, 1)
	for i, a := range answers {
		if a.Err != nil {
			return t.explain(i, a.Err)
		}
	}
	if err != nil {
		return unsent(err)
	}
	for i, s := range t.steps {
		for _, m := range answers[i+1].Messages {
			if s.Made != nil && len(m.Data) >= HeaderLen {
				s.Made(nlconn.Number(m.Data[HeaderLen:], unix.NFTA_RULE_HANDLE))
			}
		}
	}
	return nil
}

// unsent wraps the error of a batch that was not sent or not answered.
func unsent(err error) error {
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("nft: %w: that many changes in one transaction need CAP_NET_ADMIN on the host, or a larger net.core.wmem_max", err)
	}
	return fmt.Errorf("nft: %w", err)
}

// An Error is the kernel's error about one step of a batch.
type Error struct {
	What string
	Err  error
}

// Error names the step as nft would: "nft: table inet cnibox: …".
func (r *Error) Error() string { return "nft: " + r.What + ": " + r.Err.Error() }

// Unwrap returns the cause, so that errors.Is finds the errno.
func (r *Error) Unwrap() error { return r.Err }

// explain turns the errno into a sentence that says what is missing; message 0 is the one that
// begins the batch.
func (t *Batch) explain(message int, err error) error {
	if message == 0 || message > len(t.steps) {
		return &Error{"transaction", Explain(err, "CONFIG_NF_TABLES")}
	}
	s := t.steps[message-1]
	return &Error{s.What, Explain(err, s.Needs)}
}

// Explain adds the likely reason to an error: options are those of the kernel that may be missing. The kernel has few errnos: it
// returns ENOENT also for an expression or a chain type that no module provides, and EOPNOTSUPP or
// EAFNOSUPPORT for a family that it was built without.
func Explain(err error, options string) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w (CAP_NET_ADMIN is needed)", err)
	case options == "":
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (the kernel may lack %s)", err, options)
	}
	return err
}
