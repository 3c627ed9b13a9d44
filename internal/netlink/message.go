package netlink

import (
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// A Request is one message before it has a number.
type Request struct {
	Type, Flags uint16 // NLM_F_REQUEST goes without saying
	Data        []byte // the family's fixed header and the attributes

	// Frame is for the messages that begin and end a batch: they are not
	// answered, unless the whole batch is refused under their number.
	Frame bool
}

// A Message is one message of the kernel, without its header. Data is valid
// during the call that gets it.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Data        []byte
}

// append adds the request with its header, struct nlmsghdr, to b.
func (r Request) append(b []byte, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(r.Data)))
	b = binary.NativeEndian.AppendUint16(b, r.Type)
	b = binary.NativeEndian.AppendUint16(b, r.Flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // the kernel knows our port
	return pad(append(b, r.Data...))
}

// next takes the first message from a datagram.
func next(b []byte) (m Message, rest []byte, ok bool) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, false
	}
	length := int(binary.NativeEndian.Uint32(b))
	if length < unix.SizeofNlMsghdr || length > len(b) {
		return m, nil, false
	}
	m = Message{
		Type:  binary.NativeEndian.Uint16(b[4:]),
		Flags: binary.NativeEndian.Uint16(b[6:]),
		Seq:   binary.NativeEndian.Uint32(b[8:]),
		Data:  b[unix.SizeofNlMsghdr:length],
	}
	return m, b[min(align(length), len(b)):], true
}

// An Error is a refusal in the kernel's words: the error number, and the
// explanation of the extended acknowledgement where there is one. It answers
// errors.Is for its number.
type Error struct {
	Errno unix.Errno
	Text  string // empty: the kernel did not explain
}

// Error is the number's text and, behind a colon, the kernel's own if it gave one.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return e.Errno.Error() + ": " + e.Text
}

// Unwrap gives the number, which answers errors.Is for os.ErrNotExist, os.ErrExist and
// os.ErrPermission where it means that.
func (e *Error) Unwrap() error { return e.Errno }

// verdict reads NLMSG_ERROR, struct nlmsgerr, and NLMSG_DONE; nil is an
// acknowledgement.
func verdict(m Message) error {
	if len(m.Data) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return fmt.Errorf("netlink: verdict cut short: %w", io.ErrUnexpectedEOF)
	}
	code := int32(binary.NativeEndian.Uint32(m.Data))
	if code >= 0 {
		return nil
	}
	return &Error{Errno: unix.Errno(-code), Text: explanation(m)}
}

// explanation returns the message of an extended acknowledgement. It stands
// behind the error number and a copy of the request, of which a capped
// acknowledgement has the header alone.
func explanation(m Message) string {
	skip := 4
	if m.Type == unix.NLMSG_ERROR {
		if len(m.Data) < 4+unix.SizeofNlMsghdr {
			return ""
		}
		skip += unix.SizeofNlMsghdr
		if m.Flags&unix.NLM_F_CAPPED == 0 {
			skip = 4 + align(int(binary.NativeEndian.Uint32(m.Data[4:])))
		}
	}
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 || skip < 0 || skip > len(m.Data) {
		return ""
	}
	return Text(Attr(m.Data[skip:], unix.NLMSGERR_ATTR_MSG))
}
