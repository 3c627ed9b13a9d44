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

	"cnibox/internal/fault"
	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// A LinkSpec describes a link to be made. Zero fields are the kernel's choice.
type LinkSpec struct {
	Name   string // 1 to 15 bytes; of a peer it may be empty
	Index  uint32 // 0 with NS: a random one
	Kind   Kind   // nil with Peer: veth
	Parent uint32 // index in the socket's namespace, of the link to sit on
	Master uint32 // index in the namespace of the link itself
	MTU    int    // bytes
	MAC    net.HardwareAddr
	TxQLen *int      // packets; 0: without a queue
	Up     bool      // ignored for a peer: the kernel cannot make it up at once
	NS     *netns.NS // where it is born, under its final name; nil: the socket's
	Peer   *LinkSpec
}

// NewLink makes a link, os.ErrExist if one of that name is there. The link, its peer
// and where both shall be are one message, so all of it is made or nothing. An alias and
// the flags of a port the kernel takes for a link that exists, only: see [LinkChange],
// and go by the index, since another's link may have the name.
func NewLink(s LinkSpec) Op {
	data, err := s.encode()
	return newOp(s.text(), unix.RTM_NEWLINK, create, data, err)
}

// AddLink makes a link; see [NewLink].
func (c *Conn) AddLink(s LinkSpec) error { return c.Do(NewLink(s)) }

// CreateLink makes a link in the socket's namespace and returns it as it is
// right after, all in one send. On an error there is no new link.
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

// A LinkChange is what shall be different about a link; nil fields stay, and the
// zero value changes nothing. The kernel goes through a message in its own order
// and stops at what it refuses: what it did before that stays done.
type LinkChange struct {
	Name     *string
	MTU      *int // bytes
	MAC      net.HardwareAddr
	Up       *bool
	Master   *uint32 // 0: none
	Promisc  *bool
	AllMulti *bool
	TxQLen   *int // packets
	Alias    *string
	Group    *uint32   // of links that are changed together; 0: none
	NS       *netns.NS // where to move it; Name is then its name there

	ARPNotify       *bool // announce its IPv4 addresses when it comes up
	AddrGenModeNone bool  // form no IPv6 link-local address

	Hairpin, Isolated *bool // of a bridge port; not together with Master
	VLANFiltering     *bool // of a bridge
}

// ChangeLink changes a link, os.ErrNotExist if there is none with that index;
// only the fields set are sent.
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

// DelLink deletes a link by name. It is not an error if there is none, as with the
// empty name, and with one that is too long to be a link's.
func (c *Conn) DelLink(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return nil
	}
	data, err := (&rtnetlink.LinkMessage{Attributes: &rtnetlink.LinkAttributes{Name: name}}).MarshalBinary()
	return SkipAbsent(c.Do(newOp("link delete "+name, unix.RTM_DELLINK, ack, data, err)))
}

// text is the line of ip(8) without what the kernel would not complain of.
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

// encode returns the message that makes the link. Errors are unix.EINVAL for names and
// numbers that the kernel would read as others.
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
	return marshal(m, s.queue)
}

// message has what a peer may have too.
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

// queue writes the length of the queue, which the library decodes only.
func (s LinkSpec) queue(ae *netlink.AttributeEncoder) {
	if s.TxQLen != nil {
		ae.Uint32(unix.IFLA_TXQLEN, uint32(*s.TxQLen))
	}
}

// birthIndex is the index to ask for. Linux 6.1, unlike 6.18, looks for a link of the
// same name in the socket's namespace though it is to be born in another, and refuses
// eth0 where the host has one, but not if an index is asked for. A random one is as
// good as never taken.
func (s LinkSpec) birthIndex() uint32 {
	if s.NS == nil || s.Index != 0 {
		return s.Index
	}
	return 1<<20 + rand.Uint32N(1<<30)
}

// encodePeer returns the attribute of a veth that has its peer: a message within the
// message. It is empty without one. It says nothing of Up: the kernel refuses to bring up an end
// without the other (ENOTCONN), and makes the peer first.
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
	peer, err := marshal(p.message(p.Index), p.queue)
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	return encode(nil, func(ae *netlink.AttributeEncoder) { ae.Bytes(vethInfoPeer, peer) })
}

// checkName refuses what the kernel would cut short (NUL) or take for a
// template (%d); the rest of its rules it applies itself.
func checkName(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "\x00%") {
		return fmt.Errorf("link name %q: %w", name, unix.EINVAL)
	}
	return nil
}

// text lists what is changed, as ip(8) would say it.
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

// onOff writes a setting as ip(8) does.
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
