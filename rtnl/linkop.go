package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// A LinkSpec describes a link to be created. Zero fields are the kernel's choice.
type LinkSpec struct {
	Name   string // 1 to 15 bytes; of a peer it may be empty
	Index  uint32 // 0 with NS: a random one
	Kind   Kind   // nil with Peer: veth
	Parent uint32 // index of the parent link in the socket's namespace
	Master uint32 // index in the namespace of the link itself
	MTU    int    // bytes
	MAC    net.HardwareAddr
	TxQLen *int      // packets; 0: without a queue
	Queues uint32    // in each direction; 0: the kernel's choice, which for a veth waits for RCU
	Up     bool      // ignored for a peer: the kernel cannot create it up
	NS     *netns.NS // where to create it, with its final name; nil: the socket's
	Peer   *LinkSpec
}

// NewLink creates a link, os.ErrExist if the name is taken. One message has the link, its peer and
// the namespaces of both, so all of it is created or nothing. The kernel accepts an alias and port
// flags only for an existing link: see [LinkChange], and pass the index, since another program's
// link may have the name.
func NewLink(s LinkSpec) Op {
	data, err := s.encode()
	return newOp(s.text(), unix.RTM_NEWLINK, create, data, err)
}

// AddLink creates a link; see [NewLink].
func (c *Conn) AddLink(s LinkSpec) error { return c.Do(NewLink(s)) }

// CreateLink creates a link in the socket's namespace and returns it as it is after that, all in
// one send. On an error there is no new link.
func (c *Conn) CreateLink(s LinkSpec) (*Link, error) {
	op := NewLink(s)
	get, err := getByName(s.Name)
	if s.NS != nil {
		err = errors.New("the link is created in another network namespace")
	}
	if err = errors.Join(op.err, err); err == nil {
		err = fault.Check(op.text)
	}
	var answers []nlconn.Answer
	if err == nil {
		answers, err = c.c.Batch([]netlink.Message{op.req, get}, 0)
	}
	for _, a := range answers {
		err = cmp.Or(err, asNotExist(a.Err, op.req.Header.Type))
	}
	var l *Link
	if err == nil {
		l, err = decodeLink(answers[1].Messages)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op.text, err)
	}
	return l, nil
}

// A LinkChange is a change of a link; nil fields are not changed, and the zero value changes
// nothing. The kernel processes a message in its own order and stops at the first rejected
// attribute; the changes before it stay.
type LinkChange struct {
	Name     *string
	MTU      *int // bytes
	MAC      net.HardwareAddr
	Up       *bool
	Master   *uint32 // 0: none
	Promisc  *bool
	AllMulti *bool
	ARP      *bool
	TxQLen   *int // packets
	Alias    *string
	Group    *uint32   // for changing links together; 0: none
	NS       *netns.NS // where to move it; Name is then its name there

	ARPNotify       *bool // announce its IPv4 addresses when it comes up
	AddrGenModeNone bool  // do not create an IPv6 link-local address

	Hairpin, Isolated *bool // of a bridge port; not together with Master
	VLANFiltering     *bool // of a bridge
}

// ChangeLink changes a link, os.ErrNotExist if there is none with that index; only set fields are
// sent.
func ChangeLink(index uint32, ch LinkChange) Op {
	data, err := ch.encode(index)
	if index == 0 {
		err = os.ErrNotExist
	}
	return newOp(fmt.Sprintf("link set #%d%s", index, ch.text()), unix.RTM_NEWLINK, ack, data, err)
}

// SetLink changes a link; see [ChangeLink].
func (c *Conn) SetLink(index uint32, ch LinkChange) error { return c.Do(ChangeLink(index, ch)) }

// DropLink deletes a link, os.ErrNotExist if there is none.
func DropLink(index uint32) Op {
	data, err := (&rtnetlink.LinkMessage{Index: index}).MarshalBinary()
	if index == 0 {
		err = os.ErrNotExist
	}
	return newOp(fmt.Sprintf("link delete #%d", index), unix.RTM_DELLINK, ack, data, err)
}

// DelLink deletes a link by name. It is not an error if there is none; an empty name, or one that
// is too long for a link, is not an error either.
func (c *Conn) DelLink(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return nil
	}
	data, err := (&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Name: name}}).MarshalBinary()
	return SkipAbsent(c.Do(newOp("link delete "+name, unix.RTM_DELLINK, ack, data, err)))
}

// text formats the command of ip(8) with the settings that an error of the kernel may be about.
func (s LinkSpec) text() string {
	text := "link add " + s.Name
	if s.Kind != nil {
		text += " type " + s.Kind.kind()
	}
	if s.Peer != nil {
		text += " peer " + s.Peer.Name
	}
	return text
}

// encode returns the message that creates the link. Errors are unix.EINVAL for names and numbers
// that the kernel would interpret as others.
func (s LinkSpec) encode() ([]byte, error) {
	if s.Kind == nil && s.Peer != nil {
		s.Kind = Veth{}
	}
	if s.Kind == nil {
		return nil, errors.New("link without a kind")
	}
	if err := errors.Join(checkName(s.Name), check32(s.MTU, deref(s.TxQLen))); err != nil {
		return nil, err
	}
	peer, err := s.encodePeer()
	if err != nil {
		return nil, err
	}
	data, err := encode(peer, func(ae *netlink.AttributeEncoder) { err = s.Kind.encode(ae) })
	if err != nil {
		return nil, err
	}
	m := s.message(s.birthIndex())
	if s.Up {
		m.Flags, m.Change = unix.IFF_UP, unix.IFF_UP
	}
	m.Attributes.Type = s.Parent
	m.Attributes.Info = &rtnetlink.LinkInfo{Kind: s.Kind.kind(), Data: &rtnetlink.LinkData{Name: s.Kind.kind(), Data: data}}
	return marshal(m, s.queues)
}

// message returns the part of the message that a peer may have too.
func (s LinkSpec) message(index uint32) *rtnetlink.LinkMessage {
	attrs := &rtnetlink.LinkAttributes{Name: s.Name, MTU: uint32(s.MTU), Address: net.HardwareAddr(s.MAC)}
	if s.Master != 0 {
		attrs.Master = &s.Master
	}
	if s.NS != nil {
		attrs.NetNS = rtnetlink.NetNSForFD(uint32(s.NS.FD()))
	}
	return &rtnetlink.LinkMessage{Index: index, Attributes: attrs}
}

// queues writes the length of the transmit queue and the number of queues, which the library decodes
// but does not encode.
func (s LinkSpec) queues(ae *netlink.AttributeEncoder) {
	if s.TxQLen != nil {
		ae.Uint32(unix.IFLA_TXQLEN, uint32(*s.TxQLen))
	}
	if s.Queues != 0 {
		ae.Uint32(unix.IFLA_NUM_TX_QUEUES, s.Queues)
		ae.Uint32(unix.IFLA_NUM_RX_QUEUES, s.Queues)
	}
}

// birthIndex returns the index to request. Linux 6.1, unlike 6.18, looks for a link of the same
// name in the socket's namespace even if the link is to be created in another one, and rejects eth0
// if the host has an eth0. It does not if an index is requested. A random index is practically
// never taken.
func (s LinkSpec) birthIndex() uint32 {
	if s.NS == nil || s.Index != 0 {
		return s.Index
	}
	return 1<<20 + rand.Uint32N(1<<30)
}

// encodePeer returns the attribute with the peer of a veth: a message within the message; empty
// without a peer. It omits Up: the kernel creates the peer first, and cannot set an end up without
// the other one (ENOTCONN).
func (s LinkSpec) encodePeer() ([]byte, error) {
	p := s.Peer
	if p == nil {
		return nil, nil
	}
	if p.Master != 0 {
		return nil, errors.New("a peer cannot be given a master")
	}
	err := check32(p.MTU, deref(p.TxQLen))
	if p.Name != "" {
		err = errors.Join(checkName(p.Name), err)
	}
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	peer, err := marshal(p.message(p.Index), p.queues)
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	return encode(nil, func(ae *netlink.AttributeEncoder) { ae.Bytes(vethInfoPeer, peer) })
}

// checkName rejects names that the kernel would cut short (NUL) or treat as a template (%d); the
// kernel checks its other rules itself.
func checkName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "\x00%") {
		return fmt.Errorf("link name %q: %w", name, unix.EINVAL)
	}
	return nil
}

// text lists the changes in the syntax of ip(8).
func (ch LinkChange) text() string {
	var b strings.Builder
	add := func(set bool, format string, args ...any) {
		if set {
			fmt.Fprintf(&b, " "+format, args...)
		}
	}
	add(ch.Name != nil, "name %s", deref(ch.Name))
	add(ch.MTU != nil, "mtu %d", deref(ch.MTU))
	add(ch.MAC != nil, "address %s", ch.MAC)
	add(ch.Master != nil, "master #%d", deref(ch.Master))
	add(ch.Promisc != nil, "promisc %s", onOff(deref(ch.Promisc)))
	add(ch.AllMulti != nil, "allmulticast %s", onOff(deref(ch.AllMulti)))
	add(ch.ARP != nil, "arp %s", onOff(deref(ch.ARP)))
	add(ch.TxQLen != nil, "txqueuelen %d", deref(ch.TxQLen))
	add(ch.Alias != nil, "alias")
	add(ch.Group != nil, "group %d", deref(ch.Group))
	add(ch.NS != nil, "netns")
	add(ch.ARPNotify != nil, "arp_notify %s", onOff(deref(ch.ARPNotify)))
	add(ch.AddrGenModeNone, "addrgenmode none")
	add(ch.Hairpin != nil, "hairpin %s", onOff(deref(ch.Hairpin)))
	add(ch.Isolated != nil, "isolated %s", onOff(deref(ch.Isolated)))
	add(ch.VLANFiltering != nil, "vlan_filtering %s", onOff(deref(ch.VLANFiltering)))
	add(ch.Up != nil && *ch.Up, "up")
	add(ch.Up != nil && !*ch.Up, "down")
	return b.String()
}

// onOff formats a setting as ip(8) does.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// deref returns what p points to, the zero value for nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
