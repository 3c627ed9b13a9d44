package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
	"cnibox/spec"
)

// A Kind is one sort of thing that an attachment can own in our tables. Plugins
// release their own kind only, as several of a chain serve the same attachment.
type Kind int

const (
	KindMasquerade Kind = iota // addresses whose traffic is masqueraded
	KindPortMap                // host ports
	KindMACGuard               // bridge ports that may use one address only
	KindFirewall               // addresses that may pass, and the policy of bridges
	KindZone                   // addresses that were put into a zone of firewalld
	KindAdverts                // bridge ports that may not send router advertisements
)

// An Element is something an attachment owns, in words for people.
type Element struct {
	Kind Kind
	Text string // "tcp dport 8080 -> 10.1.0.2:80"

	Unread bool // no rule reads it: it is there for later calls
}

const (
	keyLen      = 24  // of Attachment.Key
	longest     = 127 // bytes of a comment; nft shows no longer ones
	commentType = 0   // NFTNL_UDATA_SET_ELEM_COMMENT, and NFTNL_UDATA_RULE_COMMENT: libnftnl, udata.h
	listsPerMsg = 200 // elements in one message, whose list must stay under 64 KiB
)

// An element is one entry of a set as the kernel has it or shall have it. Key and data are
// in the order of the parts that the types of the set have, each padded to whole registers.
type element struct {
	key   []byte
	data  []byte // of a map that is none of verdicts
	chain string // that the verdict jumps to
	owner string // the comment

	filter filterUse // of an address that is allowed
}

// comment names the owner, cut to what fits; see [spec.Attachment.Label].
func comment(o spec.Attachment) string { return commentWithin(o, longest) }

// commentWithin is comment for so many bytes.
func commentWithin(o spec.Attachment, bytes int) string {
	c := []byte(o.Label(bytes))
	for i, ch := range c {
		if ch < ' ' || ch == '"' || ch == 0x7f {
			c[i] = '?' // nft prints comments as they are, between quotes
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

// ownerNames returns the owner in a comment. Names that did not
// fit are incomplete: then Key of the result is not that of the comment.
func ownerNames(comment string) spec.Attachment {
	if ownerKey(comment) == "" || len(comment) == keyLen {
		return spec.Attachment{}
	}
	network, rest, _ := strings.Cut(comment[keyLen+1:], "/")
	id, ifname, _ := strings.Cut(rest, "/")
	return spec.Attachment{Network: network, ContainerID: id, IfName: ifname}
}

// lib is the library's element.
func (e *element) lib() nftables.SetElement {
	l := nftables.SetElement{Key: e.key, Val: e.data, Comment: e.owner + filterWords[e.filter]}
	if e.chain != "" {
		l.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: e.chain}
	}
	return l
}

// readComment finds the comment in user data; nil if there is none. It may
// end with a zero byte.
func readComment(b []byte) []byte { return readNote(b, commentType) }

// readNote finds an entry of user data by its type; nil if there is none.
func readNote(b []byte, typ byte) []byte {
	for len(b) >= 2 && int(b[1])+2 <= len(b) {
		if b[0] == typ {
			return b[2 : 2+int(b[1])]
		}
		b = b[2+int(b[1]):]
	}
	return nil
}

// A filter reports by a comment that is as long as a key, or longer, whether an element is
// wanted; nil wants all. A set can have thousands of elements of which one is wanted.
type filter func(comment []byte) bool

// decodeElements calls fn for each wanted element in a message about set elements.
func decodeElements(data []byte, want filter, fn func(element)) {
	for _, item := range nlconn.Attributes(nlconn.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		e, ok := decodeElement(item, want)
		if ok {
			fn(e)
		}
	}
}

// decodeElement reads one; false if it is not wanted, of which a set can have thousands.
func decodeElement(item []byte, want filter) (e element, ok bool) {
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
			e.owner, e.filter = readOwner(c)
			if e.filter == filterUnknown {
				e.filter = readFilterUse(v)
			}
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

// equal reports whether both do the same for the same owner; names for people
// are not compared.
func (e *element) equal(o *element) bool {
	key := ownerKey(e.owner)
	return bytes.Equal(e.data, o.data) && e.chain == o.chain && key == ownerKey(o.owner) && (key != "" || e.owner == o.owner) && e.filter == o.filter
}

// elementAt asks for one element by its key; nil if there is none, nor its set or
// table. The kernel looks it up, so others cost no time.
func (s *sock) elementAt(in *set, key []byte) (found *element, err error) {
	err = s.ask(nfTables|unix.NFT_MSG_GETSETELEM, 0, in.table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, in.name)
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
	}, func(data []byte) {
		decodeElements(data, nil, func(e element) { found = &e })
	})
	return found, absent(err)
}

// elements reads the wanted elements of a set; one that is not there is empty.
func (s *sock) elements(in *set, want filter, fn func(element)) error {
	return absent(s.ask(nfTables|unix.NFT_MSG_GETSETELEM, netlink.Dump, in.table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, in.name)
	}, func(data []byte) { decodeElements(data, want, fn) }))
}

// keyOf joins parts, each filled up with zeros to whole registers of 4 bytes: what
// the kernel compares is registers, not fields.
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

// port16 is a port as packets and maps have it.
func port16(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// addrOf reads an address from the beginning of a key or value; the zero Addr if it
// is cut short.
func addrOf(b []byte, family byte) netip.Addr {
	n := int(addrLen(family))
	if len(b) < n {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return a
}

// familyOf returns v4 or v6; IPv4 in IPv6's clothes counts as IPv6.
func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return v4
	}
	return v6
}
