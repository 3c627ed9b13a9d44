package nft

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/spec"
)

// A step is one message of a batch: its subject, for the error if the kernel rejects it; flags and
// data that the library does not write; and the function that receives the handle of the new rule.
type step struct {
	what  string              // "table inet cnibox"
	needs string              // kernel options without which the kernel rejects it; may be empty
	flags netlink.HeaderFlags // in addition to the library's
	made  func(handle uint64) // may be nil
	data  []byte              // replaces the library's data where the library cannot encode all; nil: the library's
}

// A batch collects changes that the kernel applies all together or not at all. The library encodes
// the messages and [sock.commit] sends them: the library's own Flush cannot report which message
// was rejected. The zero value is empty.
type batch struct {
	conn  nftables.Conn // has no socket
	steps []step        // one for each message
	err   error         // of writing
}

// add returns the library's connection; the caller calls one of its methods, which adds one
// message.
func (t *batch) add(s step) *nftables.Conn {
	t.steps = append(t.steps, s)
	return &t.conn
}

// fail keeps the first error of such a method.
func (t *batch) fail(err error) { t.err = cmp.Or(t.err, err) }

// messages returns the encoded messages between NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END.
func (t *batch) messages() (ms []netlink.Message, err error) {
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
			ms[i].Header.Flags |= s.flags
			if s.data != nil {
				ms[i].Data = s.data
			}
			if s.made != nil {
				ms[i].Header.Flags |= netlink.Echo
			}
		}
	}
	return ms, nil
}

func deletes(m netlink.Message) bool {
	switch m.Header.Type {
	case nfTables | unix.NFT_MSG_DELTABLE, nfTables | unix.NFT_MSG_DELRULE, nfTables | unix.NFT_MSG_DELCHAIN, nfTables | unix.NFT_MSG_DELSET, nfTables | unix.NFT_MSG_DELSETELEM:
		return true
	}
	return false
}

// commit sends the batch and waits for the acknowledgements. The error is that of the first
// rejected step. An error about the whole batch arrives as the error of its first message.
func (s *sock) commit(t *batch) error {
	if len(t.steps) == 0 {
		return nil
	}
	if err := fault.Check("nft batch"); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	ms, err := t.messages()
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	fault.Done(fault.Transactions, 1)
	answers, err := s.nl.Batch(ms, 1)
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
			if s.made != nil && len(m.Data) >= headerLen {
				s.made(num(m.Data[headerLen:], unix.NFTA_RULE_HANDLE))
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

// A batchError is the kernel's error about one step of a batch.
type batchError struct {
	what string
	err  error
}

// Error names the step as nft would: "nft: table inet cnibox: …".
func (r *batchError) Error() string { return "nft: " + r.what + ": " + r.err.Error() }

// Unwrap returns the cause, so that errors.Is finds the errno.
func (r *batchError) Unwrap() error { return r.err }

// explain turns the errno into a sentence that says what is missing; message 0 is the one that
// begins the batch.
func (t *batch) explain(message int, err error) error {
	if message == 0 || message > len(t.steps) {
		return &batchError{"transaction", explainUnsupported(err, "CONFIG_NF_TABLES")}
	}
	s := t.steps[message-1]
	if strings.HasPrefix(s.what, "set ") && errors.Is(err, os.ErrExist) {
		err = spec.Errorf(spec.CodeNotReady, "%w: another program has made one of that name in table %s: delete it", err, TableName)
	}
	return &batchError{s.what, explainUnsupported(err, s.needs)}
}

// explainUnsupported adds the likely reason to an error. The kernel has few errnos: it returns
// ENOENT also for an expression or a chain type that no module provides, and EOPNOTSUPP or
// EAFNOSUPPORT for a family that it was built without.
func explainUnsupported(err error, options string) error {
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
