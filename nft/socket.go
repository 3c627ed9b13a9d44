package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// Types of messages have the subsystem in the upper byte and the message in the
// lower: include/uapi/linux/netfilter/nfnetlink.h.
const (
	nfTables  = unix.NFNL_SUBSYS_NFTABLES << 8
	ctNetlink = unix.NFNL_SUBSYS_CTNETLINK << 8
)

// A sock is a netlink socket of the netfilter family, which nf_tables and
// connection tracking share. Requests take turns.
type sock struct {
	nl *nlconn.Conn
	ns *netns.NS
}

// dial opens a socket in ns. The caller closes it.
func dial(ns *netns.NS) (*sock, error) {
	nl, err := nlconn.Open(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netfilter socket (kernel option CONFIG_NETFILTER_NETLINK): %w", err)
	}
	return &sock{nl, ns}, nil
}

// Close closes it.
func (s *sock) Close() error { return s.nl.Close() }

// clearTime is longer than the kernel takes until no packet can use a deleted element any more: mostly
// some 10 ms. It makes every close of a netfilter socket wait until deleted elements are cleared away, and
// every other change of the rule set waits meanwhile, such as that of the next plugin of a chain.
const clearTime = 30 * time.Millisecond

// headerLen is the length of a struct nfgenmsg, include/uapi/linux/netfilter/nfnetlink.h.
const headerLen = 4

// request sends a request and calls fn with the family and the attributes of each message that
// answers it, which fn may keep. An object that is not there is os.ErrNotExist. A dump that kept
// changing is an error here: half a rule set would be taken for the whole.
func (s *sock) request(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder), fn func(family byte, data []byte)) error {
	req, err := message(typ, flags, family, body)
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

// message is a request.
func message(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	attrs, err := encode(body)
	if err != nil {
		return netlink.Message{}, fmt.Errorf("netfilter: %w", err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, nil
}
