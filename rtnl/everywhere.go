package rtnl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// A Namespace is one that [EachNS] has found.
type Namespace struct {
	Path  string    // a path to it, its process in /proc, or a text with its ID
	NS    *netns.NS // nil: it cannot be entered
	Links []Link    // none if only a process leads to it
	Addrs map[uint32][]Addr
}

// Hidden is why [EachNS] may not have found all network namespaces, as sentences; empty: it has.
type Hidden struct {
	Unnamed string // of those without an ID on the host, see [netns.Each]
	Named   string // of those with one
}

// String returns the reasons; empty: none.
func (h Hidden) String() string { return cmp.Or(h.Named, h.Unnamed) }

// EachNS calls fn with each network namespace, its links and addresses: those that [netns.Each]
// finds, and those to which the host's has given an ID (see [Conn.NameNS]), whatever keeps them
// alive. The host's own is one of them. An error of fn ends it.
func EachNS(fn func(*Namespace) error) (hidden Hidden, err error) {
	host, err := Dial(netns.Host())
	if err != nil {
		return hidden, err
	}
	defer host.Close()
	read := map[int]bool{}
	denied := ""
	hidden.Unnamed, err = netns.Each(func(path string, ns *netns.NS) error {
		n := &Namespace{Path: path, NS: ns}
		id, err := n.read(host)
		switch {
		case errors.Is(err, os.ErrPermission): // it is another user namespace's; its ID may help
			if id < 0 && !netns.InUserNS() {
				denied = fmt.Sprintf("%s: %v", path, err)
			}
			return nil
		case err != nil:
			return err
		}
		read[id] = true
		return fn(n)
	})
	if hidden.Unnamed = cmp.Or(denied, hidden.Unnamed); err != nil {
		return hidden, err
	}
	ids, err := host.nsIDs()
	if err != nil {
		return hidden, err
	}
	for _, id := range ids {
		if read[id] {
			continue
		}
		n := &Namespace{Path: fmt.Sprintf("a network namespace without a path (ID %d of ip netns list-id)", id)}
		n.Links, n.Addrs, err = host.in(id)
		switch {
		case errors.Is(err, os.ErrNotExist): // it has ended
		case err != nil:
			hidden.Named = fmt.Sprintf("network namespace with ID %d: %v", id, err)
		default:
			if err := fn(n); err != nil {
				return hidden, err
			}
		}
	}
	return hidden, nil
}

// read reads the links and addresses. id is that of the namespace on the host; -1: none.
func (n *Namespace) read(host *Conn) (id int, err error) {
	if n.NS == nil {
		addrs, err := netns.ProcessAddrs(n.Path)
		all := make([]Addr, len(addrs))
		for i, a := range addrs {
			all[i].Prefix = netip.PrefixFrom(a, a.BitLen())
		}
		n.Addrs = map[uint32][]Addr{0: all}
		return -1, err
	}
	if id, err = host.NSID(n.NS); err != nil {
		return -1, err
	}
	conn, err := Dial(n.NS)
	if err != nil {
		return id, err
	}
	defer conn.Close()
	if n.Links, err = conn.Links(); err == nil {
		n.Addrs, err = conn.AllAddrs()
	}
	return id, err
}

// Attributes of RTM_NEWNSID and RTM_GETNSID, include/uapi/linux/net_namespace.h, and the length of
// struct rtgenmsg, padded.
const (
	netnsaNSID   = 1
	netnsaFD     = 3
	nsidHeader   = 4
	anyNSID      = -1
	targetNSAddr = 10 // IFA_TARGET_NETNSID, include/uapi/linux/if_addr.h
)

// NameNS gives another namespace an ID in the socket's namespace, unless it has one. As long as the
// namespace exists, whatever keeps it alive, the ID leads to its links: see [EachNS]. The kernel
// itself gives IDs to namespaces with the peer of a veth, and to those that a link was moved to.
func (c *Conn) NameNS(ns *netns.NS) error {
	data, err := encode(make([]byte, nsidHeader), func(ae *netlink.AttributeEncoder) {
		ae.Uint32(netnsaFD, uint32(ns.FD()))
		ae.Int32(netnsaNSID, anyNSID)
	})
	err = c.Do(newOp("netns set auto", unix.RTM_NEWNSID, ack, data, err))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// nsIDs returns the IDs that the socket's namespace has given to others.
func (c *Conn) nsIDs() (ids []int, err error) {
	ms, err := c.dump(request(unix.RTM_GETNSID, 0, make([]byte, nsidHeader)))
	if err != nil {
		return nil, fmt.Errorf("IDs of network namespaces: %w", err)
	}
	for _, m := range ms {
		if id := nsidOf(m); id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// nsidOf returns the ID in an RTM_NEWNSID message; -1: none.
func nsidOf(m netlink.Message) int {
	if v := nlconn.Attribute(m.Data[min(len(m.Data), nsidHeader):], netnsaNSID); len(v) == 4 {
		return int(int32(binary.NativeEndian.Uint32(v)))
	}
	return -1
}

// in returns the links and addresses of the namespace with an ID. The error is os.ErrNotExist if
// there is none, and os.ErrPermission if it is another user namespace's, or the kernel is older
// than 4.20 and would answer about the socket's own.
func (c *Conn) in(id int) ([]Link, map[uint32][]Addr, error) {
	data, err := marshal(&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{ExtMask: new(uint32(rtextSkipStats))}},
		func(ae *netlink.AttributeEncoder) { ae.Int32(unix.IFLA_TARGET_NETNSID, int32(id)) })
	if err != nil {
		return nil, nil, err
	}
	ms, err := c.dumpIn(unix.RTM_GETLINK, data, unix.SizeofIfInfomsg, unix.IFLA_TARGET_NETNSID)
	if err != nil {
		return nil, nil, err
	}
	links, err := decodeLinks(ms)
	if err != nil {
		return nil, nil, err
	}
	data, err = encode(make([]byte, unix.SizeofIfAddrmsg), func(ae *netlink.AttributeEncoder) { ae.Int32(targetNSAddr, int32(id)) })
	if err != nil {
		return nil, nil, err
	}
	ms, err = c.dumpIn(unix.RTM_GETADDR, data, unix.SizeofIfAddrmsg, targetNSAddr)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := decodeAddrs(ms)
	return links, addrs, err
}

// dumpIn dumps objects of another namespace, whose ID is in an attribute of the request and of the
// answers.
func (c *Conn) dumpIn(typ netlink.HeaderType, data []byte, header int, attribute uint16) ([]netlink.Message, error) {
	ms, err := c.dump(request(typ, 0, data))
	switch {
	case errors.Is(err, unix.EINVAL): // no namespace has the ID, or it is ending
		return nil, os.ErrNotExist
	case err != nil:
		return nil, err
	case slices.ContainsFunc(ms, func(m netlink.Message) bool {
		return nlconn.Attribute(m.Data[min(len(m.Data), header):], attribute) == nil
	}):
		return nil, fmt.Errorf("this kernel does not report it: %w", os.ErrPermission)
	}
	return ms, nil
}
