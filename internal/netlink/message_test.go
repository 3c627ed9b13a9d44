package netlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNext(t *testing.T) {
	two := append(kernelMessage(1, 20, 2, []byte("12345")), kernelMessage(1, 21, 0, nil)...)
	m, rest, ok := next(two)
	if !ok || m.Type != 20 || m.Flags != 2 || m.Seq != 1 || string(m.Data) != "12345" {
		t.Fatalf("first: got %+v, %t", m, ok)
	}
	if m, rest, ok = next(rest); !ok || m.Type != 21 || len(m.Data) != 0 || len(rest) != 0 {
		t.Errorf("second: got %+v, %d bytes left, %t", m, len(rest), ok)
	}
	long, short := kernelMessage(1, 20, 0, nil), kernelMessage(1, 20, 0, nil)
	binary.NativeEndian.PutUint32(long, 17)
	binary.NativeEndian.PutUint32(short, 15)
	for name, b := range map[string][]byte{"empty": nil, "cut": two[:15], "too long": long, "too short": short} {
		if _, _, ok := next(b); ok {
			t.Errorf("%s: taken for a message", name)
		}
	}
}

func TestVerdict(t *testing.T) {
	header := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(header, 24) // the request with 8 bytes of payload
	text := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 8), unix.NLMSGERR_ATTR_MSG)
	text = append(text, "why\x00"...)
	capped := append(append(number(unix.EEXIST), header...), text...)
	whole := append(append(append(number(unix.EEXIST), header...), make([]byte, 8)...), text...)
	tests := map[string]struct {
		typ, flags uint16
		data       []byte
		text       string
		is         error
	}{
		"acknowledged":  {unix.NLMSG_ERROR, 0, append(number(0), header...), "", nil},
		"cut short":     {unix.NLMSG_ERROR, 0, []byte{1}, "netlink: verdict cut short: unexpected EOF", io.ErrUnexpectedEOF},
		"end of a dump": {unix.NLMSG_DONE, unix.NLM_F_MULTI, nil, "", nil},
		"bare": {
			unix.NLMSG_ERROR, 0, append(number(unix.EEXIST), header...), "file exists", os.ErrExist,
		},
		"explained, capped": {
			unix.NLMSG_ERROR, unix.NLM_F_CAPPED | unix.NLM_F_ACK_TLVS, capped, "file exists: why", os.ErrExist,
		},
		"explained": {
			unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, whole, "file exists: why", os.ErrExist,
		},
		"dump refused": {unix.NLMSG_DONE, unix.NLM_F_MULTI, number(unix.EINVAL), "invalid argument", unix.EINVAL},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := verdict(Message{Type: tt.typ, Flags: tt.flags, Data: tt.data})
			if tt.is == nil {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			if !errors.Is(err, tt.is) || err.Error() != tt.text {
				t.Errorf("got %v, want %s", err, tt.text)
			}
		})
	}
}

// The bytes stand for a text, numbers in both orders and a nest.
func TestBuf(t *testing.T) {
	var b Buf
	b.Text(1, "ab")
	b.U8(2, 7)
	b.Net32(3, 0x01020304)
	b.Nest(4, func() { b.Bytes(5, []byte{1, 2, 3, 4, 5}) })
	const want = "07000100" + "61620000" + "05000200" + "07000000" + "08000300" + "01020304" +
		"10000480" + "09000500" + "01020304" + "05000000"
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && hex.EncodeToString(b) != want {
		t.Errorf("got  %x\nwant %s", []byte(b), want)
	}
	b.U16(6, 0x1234)
	b.U32(7, 0x12345678)
	if got := Text(Attr(b, 1)); got != "ab" {
		t.Errorf("text: got %q", got)
	}
	for typ, want := range map[uint16]uint32{1: 0, 2: 7, 6: 0x1234, 7: 0x12345678, 8: 0} {
		if got := Number(Attr(b, typ)); got != want {
			t.Errorf("number %d: got %#x, want %#x", typ, got, want)
		}
	}
	if got := NetNumber(Attr(b, 3)); got != 0x01020304 {
		t.Errorf("number in network order: got %#x", got)
	}
	if got := Attr(Attr(b, 4), 5); len(got) != 5 {
		t.Errorf("nested: got %x", got)
	}
	if got := NetNumber(make([]byte, 9)); got != 0 {
		t.Errorf("nine bytes: got %d", got)
	}
}

func TestAttrsEndsAtWhatDoesNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		b    []byte
		want int
	}{
		"empty":     {nil, 0},
		"no header": {[]byte{4, 0, 1}, 0},
		"too short": {[]byte{3, 0, 1, 0}, 0},
		"too long":  {[]byte{4, 0, 1, 0, 5, 0, 1, 0}, 1},
		"no pad":    {[]byte{4, 0, 1, 0, 5, 0, 1, 0, 9}, 2},
	} {
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			t.Skip("the bytes are those of a little-endian machine")
		}
		got := 0
		for a := Attrs(tt.b); a.Next(); {
			got++
		}
		if got != tt.want {
			t.Errorf("%s: got %d attributes, want %d", name, got, tt.want)
		}
	}
}

// FuzzRead gives the readers bytes that no kernel sends: none may panic or hang.
func FuzzRead(f *testing.F) {
	f.Add(kernelMessage(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, make([]byte, 40)))
	f.Add(kernelMessage(10, unix.NLMSG_DONE, unix.NLM_F_MULTI, number(unix.EINVAL)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for m, rest, ok := next(b); ok; m, rest, ok = next(rest) {
			_ = verdict(m)
			for a := Attrs(m.Data); a.Next(); {
				v := a.Value
				Text(v)
				Number(v)
				NetNumber(v)
			}
		}
		given := false
		read := func() ([]byte, error) {
			if given {
				return nil, io.EOF
			}
			given = true
			return b, nil
		}
		reqs := make([]Request, 3)
		_ = collect(read, reqs, make([]Answer, len(reqs)), 10, func(int, Message) error { return nil })
	})
}
