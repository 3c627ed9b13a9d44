// Package netlink is the transport and the wire format that route netlink and
// netfilter share: messages, attributes, the kernel's refusals, and a socket
// that sends requests and collects their answers. What messages mean is for
// the packages above. Layout: include/uapi/linux/netlink.h.
package netlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// typeMask takes the flags off an attribute's type: NLA_TYPE_MASK.
const typeMask = 0x3fff

// A Buf is a sequence of attributes in the making. An attribute holds less
// than 64 KiB; a request in which one could be longer is never sent.
type Buf []byte

// Bytes appends an attribute; the next begins at a multiple of 4 bytes.
func (b *Buf) Bytes(typ uint16, v []byte) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(unix.NLA_HDRLEN+len(v)))
	*b = binary.NativeEndian.AppendUint16(*b, typ)
	*b = pad(append(*b, v...))
}

// Text appends a string with a zero byte behind it.
func (b *Buf) Text(typ uint16, s string) { b.Bytes(typ, append([]byte(s), 0)) }

// U8 appends a number of one byte.
func (b *Buf) U8(typ uint16, v uint8) { b.Bytes(typ, []byte{v}) }

// U16 appends a number in the machine's order, as route netlink has it.
func (b *Buf) U16(typ uint16, v uint16) {
	b.Bytes(typ, binary.NativeEndian.AppendUint16(nil, v))
}

// U32 appends a number in the machine's order.
func (b *Buf) U32(typ uint16, v uint32) {
	b.Bytes(typ, binary.NativeEndian.AppendUint32(nil, v))
}

// Net32 appends a number in network order, as netfilter has it.
func (b *Buf) Net32(typ uint16, v uint32) {
	b.Bytes(typ, binary.BigEndian.AppendUint32(nil, v))
}

// Nest appends an attribute that holds the attributes which fn appends.
func (b *Buf) Nest(typ uint16, fn func()) {
	at := len(*b)
	b.Bytes(typ|unix.NLA_F_NESTED, nil)
	fn()
	binary.NativeEndian.PutUint16((*b)[at:], uint16(len(*b)-at))
}

// Attrs is a walk over attributes that is about to begin:
//
//	for a := netlink.Attrs(b); a.Next(); {
//
// A function to range over would be a closure for each attribute's body.
func Attrs(b []byte) Walk { return Walk{rest: b} }

// A Walk stands at an attribute once Next has returned true.
type Walk struct {
	Type  uint16 // without flags
	Value []byte
	rest  []byte
}

// Next goes on to the next attribute. It ends at the first that does not fit.
func (w *Walk) Next() bool {
	b := w.rest
	if len(b) < unix.NLA_HDRLEN {
		return false
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.NLA_HDRLEN || size > len(b) {
		return false
	}
	w.Type = binary.NativeEndian.Uint16(b[2:]) & typeMask
	w.Value = b[unix.NLA_HDRLEN:size]
	w.rest = b[min(len(b), align(size)):]
	return true
}

// Attr returns the first attribute of the type; nil if there is none.
func Attr(b []byte, typ uint16) []byte {
	for a := Attrs(b); a.Next(); {
		if a.Type == typ {
			return a.Value
		}
	}
	return nil
}

// Text reads a string that ends with a zero byte or the attribute.
func Text(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}

// Number reads a value of 1, 2 or 4 bytes in the machine's order; what has
// another length is 0.
func Number(v []byte) uint32 {
	switch len(v) {
	case 1:
		return uint32(v[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(v))
	case 4:
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// NetNumber reads a value in network order of up to 8 bytes.
func NetNumber(v []byte) (n uint64) {
	for _, c := range v[:min(len(v), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}

// pad fills up to the 4 bytes on which messages and attributes begin.
func pad(b []byte) []byte {
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// align rounds up to those 4 bytes.
func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
