package dbus

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Types of messages and fields of their headers: D-Bus Specification, "Message
// Protocol".
const (
	typeCall   = 1
	typeReturn = 2
	typeError  = 3
	typeSignal = 4

	noAutoStart = 2 // flag NO_AUTO_START: the bus starts no service for the call

	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldErrorName   = 4
	fieldReplySerial = 5
	fieldDestination = 6
	fieldSignature   = 8

	fixedLen = 16       // bytes of a header before its fields, including their length
	longest  = 64 << 10 // limit in bytes for the body and for the fields; answers have less than 500
)

var errMalformed = errors.New("malformed D-Bus message")

// A message has the parts of an incoming message that are used.
type message struct {
	typ       byte
	reply     uint32 // serial of the call that it answers; 0: none
	errorName string
	member    string // of a signal
	signature string
	body      []byte
	order     binary.ByteOrder
}

// text returns the first value of the body if that is a string, else nothing.
func (m *message) text() string {
	if len(m.signature) == 0 || m.signature[0] != 's' {
		return ""
	}
	r := reader{b: m.body, order: m.order}
	return r.text()
}

// texts returns the values of the body if all are strings, else nothing.
func (m *message) texts() (all []string) {
	r := reader{b: m.body, order: m.order}
	for _, typ := range m.signature {
		if typ != 's' {
			return nil
		}
		all = append(all, r.text())
	}
	return all
}

// truth returns the body as a boolean.
func (m *message) truth() (bool, error) {
	r := reader{b: m.body, order: m.order}
	n := r.number()
	if m.signature != "b" || r.err != nil || n > 1 {
		return false, fmt.Errorf("%w: no boolean was answered", errMalformed)
	}
	return n == 1, nil
}

// sizes returns the byte order and the length of the message that begins with b, which has at least
// fixedLen bytes.
func sizes(b []byte) (order binary.ByteOrder, length int, err error) {
	switch b[0] {
	case 'l':
		order = binary.LittleEndian
	case 'B':
		order = binary.BigEndian
	default:
		return nil, 0, fmt.Errorf("%w: byte order %#x", errMalformed, b[0])
	}
	body, fields := order.Uint32(b[4:]), order.Uint32(b[12:])
	if body > longest || fields > longest {
		return nil, 0, fmt.Errorf("%w: %d bytes", errMalformed, uint64(body)+uint64(fields))
	}
	return order, align(fixedLen+int(fields), 8) + int(body), nil
}

// decode decodes a complete message. It skips unknown header fields, whose types must be known: strings,
// paths, signatures and numbers.
func decode(b []byte) (*message, error) {
	if len(b) < fixedLen {
		return nil, errMalformed
	}
	order, length, err := sizes(b)
	if err != nil {
		return nil, err
	}
	end := fixedLen + int(order.Uint32(b[12:]))
	if length != len(b) {
		return nil, errMalformed
	}
	m := &message{typ: b[1], body: b[align(end, 8):], order: order}
	for r := (reader{b: b[:end], at: fixedLen, order: order}); r.at < end; {
		r.align(8)
		field, typ := r.byte(), r.signature()
		switch typ {
		case "s", "o":
			v := r.text()
			switch field {
			case fieldErrorName:
				m.errorName = v
			case fieldMember:
				m.member = v
			}
		case "g":
			v := r.signature()
			if field == fieldSignature {
				m.signature = v
			}
		case "u":
			v := r.number()
			if field == fieldReplySerial {
				m.reply = v
			}
		default:
			return nil, fmt.Errorf("%w: header field of type %q", errMalformed, typ)
		}
		if r.err != nil {
			return nil, r.err
		}
	}
	return m, nil
}

// A reader decodes the values of a message in order. A value that is cut off sets err, and all later
// values are zero. Offsets are from the start of the message, for the alignment of values.
type reader struct {
	b     []byte
	at    int
	order binary.ByteOrder
	err   error
}

// take returns the next n bytes; nil if there are fewer.
func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b)-r.at {
		r.err = errMalformed
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at]
}

// align skips the padding before the next value.
func (r *reader) align(n int) { r.take(align(r.at, n) - r.at) }

// byte reads a BYTE.
func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// number reads a UINT32 or a BOOLEAN.
func (r *reader) number() uint32 {
	r.align(4)
	if b := r.take(4); b != nil {
		return r.order.Uint32(b)
	}
	return 0
}

// text reads a STRING or an OBJECT_PATH, and the zero byte after it.
func (r *reader) text() string {
	n := int(r.number())
	b := r.take(n)
	r.take(1)
	return string(b)
}

// signature reads a SIGNATURE, whose length is one byte.
func (r *reader) signature() string {
	b := r.take(int(r.byte()))
	r.take(1)
	return string(b)
}

// align rounds up to a multiple of to.
func align(n, to int) int { return (n + to - 1) / to * to }

// A writer encodes a message in little-endian order.
type writer []byte

// align appends the padding before the next value.
func (w *writer) align(n int) {
	for len(*w)%n != 0 {
		*w = append(*w, 0)
	}
}

// number appends a UINT32.
func (w *writer) number(v uint32) {
	w.align(4)
	*w = binary.LittleEndian.AppendUint32(*w, v)
}

// text appends a STRING or an OBJECT_PATH.
func (w *writer) text(s string) {
	w.number(uint32(len(s)))
	*w = append(append(*w, s...), 0)
}

// signature appends a SIGNATURE.
func (w *writer) signature(s string) {
	*w = append(append(append(*w, byte(len(s))), s...), 0)
}

// field appends a header field of type s, o or g.
func (w *writer) field(code, typ byte, v string) {
	w.align(8)
	*w = append(*w, code)
	w.signature(string(typ))
	if typ == 'g' {
		w.signature(v)
		return
	}
	w.text(v)
}

// call encodes a method call with string arguments.
func call(serial uint32, m Method, args []string) []byte {
	var body writer
	signature := ""
	for _, a := range args {
		body.text(a)
		signature += "s"
	}
	w := writer{'l', typeCall, noAutoStart, 1}
	w.number(uint32(len(body)))
	w.number(serial)
	w.number(0) // length of the fields
	w.field(fieldPath, 'o', m.Path)
	w.field(fieldInterface, 's', m.Interface)
	w.field(fieldMember, 's', m.Name)
	w.field(fieldDestination, 's', m.Service)
	if signature != "" {
		w.field(fieldSignature, 'g', signature)
	}
	binary.LittleEndian.PutUint32(w[fixedLen-4:], uint32(len(w)-fixedLen))
	w.align(8)
	return append(w, body...)
}
