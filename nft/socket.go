package nft

import (
	"errors"
	"fmt"
	"sync"
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
	nl   *nlconn.Conn
	ns   *netns.NS
	kept bool // by the call of its namespace
}

// dial takes the socket of the call that ns is of, or an idle one, or opens one in ns. The caller
// closes it.
func dial(ns *netns.NS) (*sock, error) {
	s, kept, err := netns.Keep(ns, unix.NETLINK_NETFILTER, func() (*sock, error) { return open(ns) })
	if err != nil {
		return nil, err
	}
	return &sock{s.nl, ns, kept}, nil
}

// open opens a socket in ns, or takes an idle one. Only the opening happens there.
func open(ns *netns.NS) (*sock, error) {
	if nl := idle.take(ns); nl != nil {
		return &sock{nl: nl, ns: ns}, nil
	}
	nl, err := nlconn.Open(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netfilter socket (kernel option CONFIG_NETFILTER_NETLINK): %w", err)
	}
	return &sock{nl: nl, ns: ns}, nil
}

// clearTime is longer than the kernel takes until no packet can use a deleted
// element any more: mostly some 10 ms.
const clearTime = 30 * time.Millisecond

// Close leaves the socket open and idle if the process has deleted something just now. The kernel makes
// every close of a netfilter socket wait until deleted elements are cleared away, and
// every other change of the rule set waits meanwhile, such as that of the next plugin
// of a chain. That takes the idle one; when the process ends after other slow work,
// nothing is left to wait for.
//
// It does nothing to one that a call keeps, until the call ends.
func (s *sock) Close() error {
	if s.kept || idle.add(s) {
		return nil
	}
	return s.nl.Close()
}

// idle are the open sockets that are not in use.
var idle pool

// A pool keeps sockets open. There are as many in a namespace as were in use at once.
type pool struct {
	mu      sync.Mutex
	deleted time.Time // when the process committed a deletion last
	socks   map[netns.ID][]*nlconn.Conn
}

// noteDeletion records that the kernel has something to clear away.
func (p *pool) noteDeletion() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleted = time.Now()
}

// add takes a socket in, unless it can be closed at once or its namespace is not known.
func (p *pool) add(s *sock) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.deleted) > clearTime {
		return false
	}
	id, err := s.ns.ID()
	if err != nil {
		return false
	}
	if p.socks == nil {
		p.socks = make(map[netns.ID][]*nlconn.Conn)
	}
	p.socks[id] = append(p.socks[id], s.nl)
	return true
}

// take returns a socket in ns, nil if there is none.
func (p *pool) take(ns *netns.NS) *nlconn.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.socks) == 0 {
		return nil
	}
	id, err := ns.ID()
	all := p.socks[id]
	if err != nil || len(all) == 0 {
		return nil
	}
	last := len(all) - 1
	p.socks[id] = all[:last]
	return all[last]
}

// headerLen is the length of a struct nfgenmsg, include/uapi/linux/netfilter/nfnetlink.h.
const headerLen = 4

// ask sends a request and calls fn with the attributes of each message that
// answers it, which fn may keep. An object that is not there is os.ErrNotExist.
func (s *sock) ask(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder), fn func(data []byte)) error {
	return s.askFamily(typ, flags, family, body, func(_ byte, data []byte) { fn(data) })
}

// askFamily is ask for those who need the family of what answers. A dump that kept
// changing is an error here: half a rule set would be taken for the whole.
func (s *sock) askFamily(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder), fn func(family byte, data []byte)) error {
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
