package nlconn

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Attributes iterates over the types and values of attributes without copying them. It ends at the
// first one that is cut off.
//
// A set of host ports can have 40,000 elements, each with up to four levels of attributes, and a host
// 1,000 links. The library's AttributeDecoder reads each level twice and copies it: with it a DEL of
// 10,000 ports allocates 129 MB instead of 58.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	ne := binary.NativeEndian
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			size := int(ne.Uint16(b))
			if size < unix.NLA_HDRLEN || size > len(b) || !yield(ne.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.NLA_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

// Attribute returns the value of the first attribute with the first type in path, within it of the
// first one with the next type, and so on; nil if there is none.
func Attribute(b []byte, path ...uint16) []byte {
	for _, typ := range path {
		var found []byte
		for t, v := range Attributes(b) {
			if t == typ {
				found = v
				break
			}
		}
		b = found
	}
	return b
}

// Text reads a string with [Attribute]; it ends with a zero byte or with the attribute.
func Text(b []byte, path ...uint16) string { return unix.ByteSliceToString(Attribute(b, path...)) }

// Number reads a number of up to 8 bytes in network byte order, as nf_tables has them, with [Attribute].
func Number(b []byte, path ...uint16) (n uint64) {
	v := Attribute(b, path...)
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}
