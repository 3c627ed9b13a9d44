package nft

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/netlink"
	"cnibox/spec"
)

// A step is one message of a batch, for the error when the kernel refuses it.
type step struct {
	what  string // "table inet cnibox"
	needs string // kernel options without which it is refused; may be empty
}

// A batch collects changes that the kernel makes all at once or not at all: the
// messages between NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END, which
// include/uapi/linux/netfilter/nfnetlink.h has. The zero value is empty.
type batch struct {
	reqs  []netlink.Request
	steps []step // one for each request
	drops bool   // something is deleted
	gen   uint32 // generation of the rule set that the batch was made for; 0: any
}

// add appends a message of nf_tables; body writes its attributes.
func (t *batch) add(s step, msg, flags uint16, family byte, body func(b *netlink.Buf)) {
	b := header(family, 0)
	body(&b)
	t.reqs = append(t.reqs, netlink.Request{Type: nfTables | msg, Flags: flags | unix.NLM_F_ACK, Data: b})
	t.steps = append(t.steps, s)
	switch msg {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELSETELEM:
		t.drops = true
	}
}

// commit sends the batch and waits for the kernel's word on it: the first
// refusal of a step, or what is wrong with all of it, which comes as the
// refusal of the message that begins it.
func (s *sock) commit(t *batch) error {
	if len(t.steps) == 0 {
		return nil
	}
	if err := fault.Check("nft batch"); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	frame := header(0, unix.NFNL_SUBSYS_NFTABLES)
	begin := frame
	if t.gen != 0 {
		begin = header(0, unix.NFNL_SUBSYS_NFTABLES)
		begin.Net32(unix.NFNL_BATCH_GENID, t.gen)
	}
	reqs := append([]netlink.Request{{Type: unix.NFNL_MSG_BATCH_BEGIN, Data: begin, Frame: true}}, t.reqs...)
	reqs = append(reqs, netlink.Request{Type: unix.NFNL_MSG_BATCH_END, Data: frame, Frame: true})
	answers, err := s.nl.Exchange(reqs, func(int, netlink.Message) error { return nil })
	if t.drops {
		parked.settle()
	}
	for i, a := range answers {
		if a.Err != nil {
			return t.explain(i, a.Err)
		}
	}
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	return nil
}

// A refusal is the kernel's error about one step of a batch.
type refusal struct {
	what string
	err  error
}

// Error names the step as nft would: "nft: table inet cnibox: …".
func (r *refusal) Error() string { return "nft: " + r.what + ": " + r.err.Error() }

// Unwrap lets errors.Is find the kernel's number.
func (r *refusal) Unwrap() error { return r.err }

// explain turns the kernel's number into a sentence that tells what is
// missing; message 0 is the one that begins the batch.
func (t *batch) explain(message int, err error) error {
	if message == 0 || message > len(t.steps) {
		return &refusal{"transaction", lacking(err, "CONFIG_NF_TABLES")}
	}
	s := t.steps[message-1]
	if strings.HasPrefix(s.what, "set ") && errors.Is(err, os.ErrExist) {
		err = spec.Errorf(spec.CodeNotReady, "%w: somebody has made another one of that name in table %s, which has to go", err, TableName)
	}
	return &refusal{s.what, lacking(err, s.needs)}
}

// lacking adds the likely reason to an error, whose numbers the kernel is sparing
// with: ENOENT is also what it says of an expression or a type of chain that no
// module offers, EOPNOTSUPP and EAFNOSUPPORT of a family that it was built without.
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
