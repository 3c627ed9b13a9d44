package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// encode returns the attributes that fn writes, with numbers in network byte order, as nf_tables
// expects.
func encode(fn func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if fn != nil {
		fn(ae)
	}
	return ae.Encode()
}

// text reads a string attribute with [nlconn.Attribute]; the string ends with a zero byte or with
// the attribute.
func text(b []byte, path ...uint16) string {
	return unix.ByteSliceToString(nlconn.Attribute(b, path...))
}

// num reads a number of up to 8 bytes in network byte order with [nlconn.Attribute].
func num(b []byte, path ...uint16) (n uint64) {
	v := nlconn.Attribute(b, path...)
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}
