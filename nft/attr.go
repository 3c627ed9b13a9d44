package nft

import (
	"encoding/binary"
	"iter"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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

// attributes ranges over attributes by type, without copying them. It ends at the first
// that does not fit.
//
// A set of host ports can have 40,000 elements, each of up to four levels. The library's
// AttributeDecoder copies each attribute on each level: with it a DEL of 10,000 ports
// allocates 129 MB instead of 58.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			size := int(ne.Uint16(b))
			if size < unix.NLA_HDRLEN || size > len(b) || !yield(ne.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.NLA_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// attribute returns the value of the first attribute of a type, and within that of the
// next type; nil if there is none.
func attribute(b []byte, path ...uint16) []byte {
	for _, typ := range path {
		var found []byte
		for t, v := range attributes(b) {
			if t == typ {
				found = v
				break
			}
		}
		b = found
	}
	return b
}

// text is attribute for a string that ends with a zero byte or the attribute.
func text(b []byte, path ...uint16) string { return unix.ByteSliceToString(attribute(b, path...)) }

// num is attribute for a number in network order of up to 8 bytes.
func num(b []byte, path ...uint16) (n uint64) {
	v := attribute(b, path...)
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}
