package rtnl

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kernelMessage is a message with exactly these flags, as the kernel writes it.
func kernelMessage(seq uint32, typ, flags uint16, payload []byte) []byte {
	b := request{typ: typ, data: payload}.append(nil, seq)
	binary.NativeEndian.PutUint16(b[6:], flags)
	return b
}

// verdict is the payload of NLMSG_ERROR and NLMSG_DONE; 0 is no error.
func verdict(errno unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
}

// The kernel's answers as datagrams, to three requests that begin at number 10.
func TestCollect(t *testing.T) {
	refused := verdict(unix.EEXIST)
	ack := kernelMessage(12, unix.NLMSG_ERROR, 0, verdict(0))
	tests := map[string]struct {
		datagrams [][]byte
		want      []error // by request
		seen      []int   // requests that messages were given for
		err       error
	}{
		"only the last is acknowledged": {
			datagrams: [][]byte{ack}, want: []error{nil, nil, nil},
		},
		"one is refused": {
			datagrams: [][]byte{kernelMessage(11, unix.NLMSG_ERROR, 0, refused), ack},
			want:      []error{nil, os.ErrExist, nil},
		},
		"in one datagram": {
			datagrams: [][]byte{append(kernelMessage(10, unix.NLMSG_ERROR, 0, refused), ack...)},
			want:      []error{os.ErrExist, nil, nil},
		},
		"notifications and old answers between": {
			datagrams: [][]byte{
				kernelMessage(0, unix.RTM_NEWLINK, 0, nil), kernelMessage(9, unix.NLMSG_ERROR, 0, refused),
				kernelMessage(13, unix.NLMSG_ERROR, 0, refused), kernelMessage(12, unix.NLMSG_NOOP, 0, nil), ack,
			},
			want: []error{nil, nil, nil}, seen: []int{notification},
		},
		"the last is a get": {
			datagrams: [][]byte{kernelMessage(12, unix.RTM_NEWLINK, 0, nil)},
			want:      []error{nil, nil, nil}, seen: []int{2},
		},
		"the last is a dump": {
			datagrams: [][]byte{
				kernelMessage(12, unix.RTM_NEWLINK, unix.NLM_F_MULTI, nil), kernelMessage(12, unix.RTM_NEWLINK, unix.NLM_F_MULTI, nil),
				kernelMessage(12, unix.NLMSG_DONE, unix.NLM_F_MULTI, verdict(0)),
			},
			want: []error{nil, nil, nil}, seen: []int{2, 2},
		},
		"the socket breaks": {
			datagrams: [][]byte{kernelMessage(12, unix.RTM_NEWLINK, unix.NLM_F_MULTI, nil)}, seen: []int{2}, err: io.EOF,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			read := func() ([]byte, error) {
				if len(tt.datagrams) == 0 {
					return nil, io.EOF
				}
				b := tt.datagrams[0]
				tt.datagrams = tt.datagrams[1:]
				return b, nil
			}
			var seen []int
			answers, err := collect(read, make([]request, 3), 10, func(i int, _ message) error {
				seen = append(seen, i)
				return nil
			})
			if !errors.Is(err, tt.err) || len(answers) != len(tt.want) || !slices.Equal(seen, tt.seen) {
				t.Fatalf("got %v, %v, messages for %v; want %v, messages for %v", answers, err, seen, tt.want, tt.seen)
			}
			for i, a := range answers {
				if !errors.Is(a.err, tt.want[i]) {
					t.Errorf("request %d: got %v, want %v", i, a.err, tt.want[i])
				}
			}
		})
	}
}

// unsteady is a kernel whose dump changes under its hands the first n times.
type unsteady struct{ n, asked int }

func (u *unsteady) exchange(_ []request, each func(int, message) error) ([]answer, error) {
	u.asked++
	return []answer{{changed: u.asked <= u.n}}, each(0, message{})
}

func TestDumpIsRetried(t *testing.T) {
	for n, asked := range map[int]int{0: 1, 3: 4, 100: dumpTries} {
		k := &unsteady{n: n}
		got, err := dump(k, request{}, func(message) (int, bool, error) { return 7, true, nil })
		if err != nil || len(got) != 1 || k.asked != asked {
			t.Errorf("changed %d times: got %v, %v after %d dumps; want one, after %d", n, got, err, k.asked, asked)
		}
	}
}

// A receive buffer that overflows is an error, once: the socket must work
// afterwards, and not wait for an answer that the kernel dropped.
func TestKernelOverflow(t *testing.T) {
	c, err := Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.nl.SetReadBuffer(1); err != nil { // the kernel makes it 2,304 bytes
		t.Fatal(err)
	}
	get, err := getByName("no-such-link")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.exchange(slices.Repeat([]request{get}, 64), func(int, message) error { return nil })
	if !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("got %v, want %v", err, unix.ENOBUFS)
	}
	if err := c.nl.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Link("lo"); err != nil {
		t.Errorf("the next request: %v", err)
	}
}
