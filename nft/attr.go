package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// encode returns the attributes that fn writes, with numbers in network order, as
// nf_tables has them.
func encode(fn func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if fn != nil {
		fn(ae)
	}
	return ae.Encode()
}

// text is [nlconn.Attribute] for a string that ends with a zero byte or the attribute.
func text(b []byte, path ...uint16) string {
	return unix.ByteSliceToString(nlconn.Attribute(b, path...))
}

// num is [nlconn.Attribute] for a number in network order of up to 8 bytes.
func num(b []byte, path ...uint16) (n uint64) {
	v := nlconn.Attribute(b, path...)
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}
