package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/spec"
)

// A Kind is a type of resource that an attachment can own in our tables. Plugins release their own
// kind only, since several plugins of a chain serve the same attachment.
type Kind int

const (
	KindMasquerade Kind = iota // addresses whose traffic is masqueraded
	KindPortMap                // host ports
	KindMACGuard               // bridge ports that may use one address only
	KindFirewall               // addresses that may pass, and the policy of bridges
	KindZone                   // addresses that were put into a zone of firewalld
	KindAdverts                // bridge ports that may not send router advertisements
)

const (
	keyLen      = 24  // of Attachment.Key
	longest     = 127 // bytes of a comment; nft does not show longer ones
	commentType = 0   // NFTNL_UDATA_SET_ELEM_COMMENT, and NFTNL_UDATA_RULE_COMMENT: libnftnl, udata.h
	listsPerMsg = 200 // elements in one message, whose list must be smaller than 64 KiB
)

// An Element is one element of one of our sets or maps, as a [Tx] puts it or as it is read back.
// Key and data are in the kernel's form: the parts of the set's types in order, each padded to
// whole registers. An element that another program has made may be truncated.
type Element struct {
	set     *set
	key     []byte
	data    []byte // of a map without verdicts
	chain   string // target of the verdict
	comment string // names the owner

	filter filterUse // of an address that is allowed
}

// Kind returns the kind of the element's set.
func (e *Element) Kind() Kind { return e.set.kind }

// OwnerKey returns the owner's key, see [spec.Attachment.Key]; empty: no owner.
func (e *Element) OwnerKey() string { return ownerKey(e.comment) }

// Owner returns the attachment in the comment. Names that did not fit are incomplete; then the Key
// of the result is not OwnerKey.
func (e *Element) Owner() spec.Attachment { return ownerNames(e.comment) }

// Unread reports whether no rule reads the element: later calls use it.
func (e *Element) Unread() bool {
	return e.set == managedBySet || e.set == isolatedBySet || e.set == enlistedSet
}

// Addr returns the address of the container, or for a host port the host's address (zero: any). It
// is zero for elements without an address.
func (e *Element) Addr() netip.Addr {
	if e.set.family == 0 || e.set.key == portType {
		return netip.Addr{}
	}
	return addrOf(e.key, e.set.family)
}

// Port returns the protocol and the number of a host port; empty: not a port.
func (e *Element) Port() (proto string, port uint16) {
	key := e.key
	if e.set.key != portType {
		key = key[min(len(key), int(addrLen(e.set.family))):]
	}
	if !e.set.isPorts() || len(key) < 8 {
		return "", 0
	}
	return ProtoName(key[0]), binary.BigEndian.Uint16(key[4:])
}

// Target returns the address and port to which a host port is translated; zero: none.
func (e *Element) Target() netip.AddrPort {
	if e.set.kind != KindPortMap {
		return netip.AddrPort{}
	}
	return targetOf(e.data, e.set.family)
}

// Link returns the name of the bridge or the bridge port; empty: none.
func (e *Element) Link() string {
	if e.set.family != 0 || e.set == enlistedSet {
		return ""
	}
	return string(bytes.TrimRight(e.key[:min(ifnameLen, len(e.key))], "\x00"))
}

// MAC returns the only source address that a bridge port may use; nil: none.
func (e *Element) MAC() net.HardwareAddr {
	if e.set != macsSet || len(e.key) < ifnameLen+macLen {
		return nil
	}
	return e.key[ifnameLen : ifnameLen+macLen]
}

// String describes the element, for CHECK's errors, lists and golden files.
func (e *Element) String() string {
	switch {
	case e.set == enlistedSet:
		return e.set.name
	case e.set.kind == KindMasquerade:
		return "masquerade " + e.Addr().String()
	case e.set.kind == KindPortMap:
		return e.portText()
	case e.set.kind == KindZone:
		return "zone of firewalld for " + e.Addr().String()
	case e.set.kind == KindAdverts:
		return "no router advertisements of port " + e.Link()
	case e.set == guardedSet:
		return "guard port " + e.Link()
	case e.set == macsSet:
		return fmt.Sprintf("port %s from %s", e.Link(), e.MAC())
	case e.set.family != 0:
		return "allow " + e.Addr().String()
	}
	return e.set.name + " " + e.Link()
}

// portText is String for a host port, in the syntax of nft.
func (e *Element) portText() string {
	proto, number := e.Port()
	if proto == "" {
		return "unreadable"
	}
	host := ""
	if e.set.key != portType {
		host = e.Addr().String() + " "
	}
	port := fmt.Sprintf("%s dport %d", proto, number)
	switch {
	case strings.HasPrefix(e.set.name, "hairpin"):
		return "masquerade of " + host + port
	case e.set.verdicts():
		return host + port + " with conditions"
	}
	return fmt.Sprintf("%s%s -> %s", host, port, e.Target())
}

// comment names the owner, cut to fit; see [spec.Attachment.Label].
func comment(o spec.Attachment) string { return commentWithin(o, longest) }

// commentWithin is comment with a limit in bytes.
func commentWithin(o spec.Attachment, bytes int) string {
	c := []byte(o.Label(bytes))
	for i, ch := range c {
		if ch < ' ' || ch == '"' || ch == 0x7f {
			c[i] = '?' // nft prints comments unchanged between quotes
		}
	}
	return string(c)
}

// ownerKey returns the key at the beginning of a comment; "" if it is not ours.
func ownerKey(comment string) string {
	if len(comment) < keyLen || len(comment) > keyLen && comment[keyLen] != ' ' {
		return ""
	}
	return comment[:keyLen]
}

// ownerNames returns the owner in a comment. Names that did not fit are incomplete; then the Key of
// the result is not that of the comment.
func ownerNames(comment string) spec.Attachment {
	if ownerKey(comment) == "" || len(comment) == keyLen {
		return spec.Attachment{}
	}
	network, rest, _ := strings.Cut(comment[keyLen+1:], "/")
	id, ifname, _ := strings.Cut(rest, "/")
	return spec.Attachment{Network: network, ContainerID: id, IfName: ifname}
}

// lib converts the element for the library.
func (e *Element) lib() nftables.SetElement {
	l := nftables.SetElement{Key: e.key, Val: e.data, Comment: e.comment + filterWords[e.filter]}
	if e.chain != "" {
		l.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: e.chain}
	}
	return l
}

// readComment finds the comment in user data; nil if there is none. It may end with a zero byte.
func readComment(b []byte) []byte {
	for len(b) >= 2 && int(b[1])+2 <= len(b) {
		if b[0] == commentType {
			return b[2 : 2+int(b[1])]
		}
		b = b[2+int(b[1]):]
	}
	return nil
}

// A filter selects elements by the comment, which is at least as long as a key; nil selects all. A
// set can have thousands of elements of which one is selected.
type filter func(comment []byte) bool

// decodeElements calls fn for each selected element in a message with elements of a set.
func decodeElements(set *set, data []byte, want filter, fn func(Element)) {
	for _, item := range nlconn.Attributes(nlconn.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		if e, ok := decodeElement(item, want); ok {
			e.set = set
			fn(e)
		}
	}
}

// decodeElement decodes one element; false if it is not selected.
func decodeElement(item []byte, want filter) (e Element, ok bool) {
	var data []byte
	ok = want == nil
	for t, v := range nlconn.Attributes(item) {
		switch t {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = v
		case unix.NFTA_SET_ELEM_DATA:
			data = v
		case unix.NFTA_SET_ELEM_USERDATA:
			c := readComment(v)
			ok = ok || len(c) >= keyLen && want(c)
			e.comment, e.filter = readOwner(c)
		}
	}
	if !ok {
		return e, false
	}
	e.key = nlconn.Attribute(e.key, unix.NFTA_DATA_VALUE)
	for t, v := range nlconn.Attributes(data) {
		switch t {
		case unix.NFTA_DATA_VALUE:
			e.data = v
		case unix.NFTA_DATA_VERDICT:
			e.chain = text(v, unix.NFTA_VERDICT_CHAIN)
		}
	}
	return e, true
}

// equal reports whether both do the same for the same owner; it does not compare the owner's names.
func (e *Element) equal(o *Element) bool {
	key := e.OwnerKey()
	return bytes.Equal(e.data, o.data) && e.chain == o.chain && key == o.OwnerKey() && (key != "" || e.comment == o.comment) && e.filter == o.filter
}

// getElement gets one element by its key; nil if the element, its set or its table does not exist.
// The kernel looks it up, so the number of other elements does not matter.
func (s *sock) getElement(set *set, key []byte) (found *Element, err error) {
	err = s.request(nfTables|unix.NFT_MSG_GETSETELEM, 0, set.table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set.name)
		ae.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
				ae.Nested(unix.NFTA_SET_ELEM_KEY, func(ae *netlink.AttributeEncoder) error {
					ae.Bytes(unix.NFTA_DATA_VALUE, key)
					return nil
				})
				return nil
			})
			return nil
		})
	}, func(_ byte, data []byte) {
		decodeElements(set, data, nil, func(e Element) { found = &e })
	})
	return found, ignoreNotExist(err)
}

// elements dumps the selected elements of a set; a set that does not exist has none.
func (s *sock) elements(set *set, want filter, fn func(Element)) error {
	return ignoreNotExist(s.request(nfTables|unix.NFT_MSG_GETSETELEM, netlink.Dump, set.table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set.name)
	}, func(_ byte, data []byte) { decodeElements(set, data, want, fn) }))
}

// keyOf joins parts, each padded with zeros to whole registers of 4 bytes: the kernel compares
// registers, not fields.
func keyOf(parts ...[]byte) []byte {
	key := make([]byte, 0, 24)
	for _, p := range parts {
		key = append(key, p...)
		for len(key)%4 != 0 {
			key = append(key, 0)
		}
	}
	return key
}

// port16 encodes a port as packets and maps have it.
func port16(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// addrOf reads an address from the beginning of a key or value; the zero Addr if it is truncated.
func addrOf(b []byte, family byte) netip.Addr {
	n := int(addrLen(family))
	if len(b) < n {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return a
}

// familyOf returns v4 or v6; an IPv4-mapped IPv6 address counts as IPv6.
func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return v4
	}
	return v6
}
