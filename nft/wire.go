package nft

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// nlaTypeMask takes the flags off an attribute's type.
// NLA_TYPE_MASK, include/uapi/linux/netlink.h.
const nlaTypeMask = 0x3fff

// be, ne: nf_tables numbers its attributes in network order; netlink headers
// and a few loaded values (marks, address types) are in the machine's.
var (
	be = binary.BigEndian
	ne = binary.NativeEndian
)

// A buf is a netlink message, or several, in the making.
type buf []byte

// open begins a message of nfnetlink and returns where it began, for close.
func (b *buf) open(typ, flags uint16, seq uint32, family byte, resource uint16) int {
	at := len(*b)
	*b = append(*b, 0, 0, 0, 0) // the length
	*b = ne.AppendUint16(*b, typ)
	*b = ne.AppendUint16(*b, flags)
	*b = ne.AppendUint32(*b, seq)
	*b = append(*b, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	*b = be.AppendUint16(*b, resource)
	return at
}

// close writes the length of the message begun at.
func (b *buf) close(at int) { ne.PutUint32((*b)[at:], uint32(len(*b)-at)) }

// nest appends an attribute that holds attributes.
func (b *buf) nest(typ uint16, fn func()) {
	at := len(*b)
	*b = append(*b, 0, 0)
	*b = ne.AppendUint16(*b, typ|unix.NLA_F_NESTED)
	fn()
	ne.PutUint16((*b)[at:], uint16(len(*b)-at))
}

// bytes appends an attribute; the next begins at a multiple of 4 bytes.
func (b *buf) bytes(typ uint16, v []byte) {
	*b = ne.AppendUint16(*b, uint16(unix.NLA_HDRLEN+len(v)))
	*b = ne.AppendUint16(*b, typ)
	*b = append(*b, v...)
	for len(*b)%unix.NLA_ALIGNTO != 0 {
		*b = append(*b, 0)
	}
}

// text appends a string with the zero byte that nf_tables wants.
func (b *buf) text(typ uint16, s string) { b.bytes(typ, append([]byte(s), 0)) }

// u32 appends a number in network order.
func (b *buf) u32(typ uint16, v uint32) {
	var data [4]byte
	be.PutUint32(data[:], v)
	b.bytes(typ, data[:])
}

// attrs walks over attributes. It ends at the first one that does not fit.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			size, typ := int(ne.Uint16(b)), ne.Uint16(b[2:])
			if size < unix.NLA_HDRLEN || size > len(b) {
				return
			}
			if !yield(typ&nlaTypeMask, b[unix.NLA_HDRLEN:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// attr returns the first attribute of the type; nil if there is none.
func attr(b []byte, typ uint16) []byte {
	for t, v := range attrs(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

// text reads a string that ends with a zero byte or the attribute.
func text(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}

// number reads a big-endian value of up to 8 bytes.
func number(v []byte) (n uint64) {
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}
