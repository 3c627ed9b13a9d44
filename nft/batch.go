package nft

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
)

// A step is one message of a batch, for the error when the kernel refuses it.
type step struct {
	what  string // "table inet cnibox"
	needs string // kernel options without which it is refused; may be empty
}

// A batch collects changes that the kernel makes all at once or not at all.
type batch struct {
	b     buf
	steps []step
	last  int // where the last message began
}

// add appends a message of nf_tables; body writes its attributes.
func (t *batch) add(s step, msg, flags uint16, family byte, body func(b *buf)) {
	seq := firstSeq + uint32(len(t.steps)) + 1
	t.last = t.b.open(nfTables|msg, unix.NLM_F_REQUEST|flags, seq, family, 0)
	body(&t.b)
	t.b.close(t.last)
	t.steps = append(t.steps, s)
}

// commit sends the batch and waits for the kernel's word on it.
//
// Only the last message asks for an acknowledgement; refused ones are
// answered in any case, and what concerns the whole batch comes under the
// number of its beginning.
func (s *sock) commit(t *batch) error {
	if len(t.steps) == 0 {
		return nil
	}
	if err := fault.Check("nft batch"); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	flags := t.b[t.last+6:]
	ne.PutUint16(flags, ne.Uint16(flags)|unix.NLM_F_ACK)

	out := buf(make([]byte, 0, len(t.b)+2*headerBytes))
	at := out.open(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, firstSeq, 0, unix.NFNL_SUBSYS_NFTABLES)
	out.close(at)
	out = append(out, t.b...)
	end := firstSeq + uint32(len(t.steps)) + 1
	at = out.open(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, end, 0, unix.NFNL_SUBSYS_NFTABLES)
	out.close(at)
	if err := s.send(out); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	return s.verdict(t)
}

// verdict reads the answers to a batch and returns the first error.
func (s *sock) verdict(t *batch) (first error) {
	end := firstSeq + uint32(len(t.steps))
	answer := func(typ, _ uint16, seq uint32, data []byte) bool {
		if typ != unix.NLMSG_ERROR || seq < firstSeq || seq > end {
			return false
		}
		if err := errno(data); err != nil && first == nil {
			first = t.explain(seq, err)
		}
		return seq == end || seq == firstSeq
	}
	for {
		last, err := s.receive(answer)
		if err != nil {
			return errors.Join(first, fmt.Errorf("nft: %w", err))
		}
		if last {
			return first
		}
	}
}

// A refusal is the kernel's error about one step of a batch.
type refusal struct {
	what string
	err  error
}

func (r *refusal) Error() string { return "nft: " + r.what + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// explain turns the kernel's number into a sentence that tells what is missing.
func (t *batch) explain(seq uint32, err error) error {
	if seq == firstSeq {
		return &refusal{"transaction", lacking(err, "CONFIG_NF_TABLES")}
	}
	s := t.steps[seq-firstSeq-1]
	return &refusal{s.what, lacking(err, s.needs)}
}

// lacking adds the likely reason to an error.
func lacking(err error, options string) error {
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
