package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/nft/internal/wire"
)

// Message types have the subsystem in the upper byte and the message in the lower:
// include/uapi/linux/netfilter/nfnetlink.h.
const (
	nfTables  = wire.Tables
	ctNetlink = unix.NFNL_SUBSYS_CTNETLINK << 8
)

// A sock is a netlink socket of the netfilter family, for nf_tables and connection tracking.
// Requests are serialized.
type sock struct {
	nl   *nlconn.Conn
	ns   *netns.NS
	kept bool // by a session
}

// dial opens a socket, or returns that of the session. The caller closes it.
func (t *Table) dial() (s *sock, err error) {
	s = &sock{ns: t.ns, kept: t.session != nil}
	if s.kept {
		s.nl, err = t.session.Conn(t.ns, unix.NETLINK_NETFILTER)
	} else {
		s.nl, err = nlconn.Open(t.ns, unix.NETLINK_NETFILTER)
	}
	if err != nil {
		return nil, fmt.Errorf("netfilter socket (kernel option CONFIG_NETFILTER_NETLINK): %w", err)
	}
	return s, nil
}

// Close closes the socket, unless it is of a session.
func (s *sock) Close() error {
	if s.kept {
		return nil
	}
	return s.nl.Close()
}

const headerLen = wire.HeaderLen

// request sends a request and calls fn with the family and the attributes of each answer; fn may
// retain them. The error for a missing object is os.ErrNotExist. An interrupted dump
// (NLM_F_DUMP_INTR) that stays so is an error, since a part of the rule set must not be taken for
// all of it.
func (s *sock) request(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder), fn func(family byte, data []byte)) error {
	req, err := wire.Message(typ, flags, family, body)
	if err != nil {
		return err
	}
	send := s.nl.Execute
	if flags&netlink.Dump == netlink.Dump {
		send = s.nl.Dump
	}
	ms, err := send(req)
	if errors.Is(err, nlconn.ErrInterrupted) {
		return fmt.Errorf("netfilter: rule set: %w", err)
	}
	if err != nil {
		return err
	}
	for _, m := range ms {
		if len(m.Data) >= headerLen {
			fn(m.Data[0], m.Data[headerLen:])
		}
	}
	return nil
}
