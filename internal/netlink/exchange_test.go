package netlink

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// kernelMessage is a message with exactly these flags, as the kernel writes it.
func kernelMessage(seq uint32, typ, flags uint16, payload []byte) []byte {
	b := Request{Type: typ, Data: payload}.append(nil, seq)
	binary.NativeEndian.PutUint16(b[6:], flags)
	return b
}

// number is the payload of NLMSG_ERROR and NLMSG_DONE; 0 is no error.
func number(errno unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
}

// The kernel's answers as datagrams, to three requests that begin at number 10.
func TestCollect(t *testing.T) {
	refused := number(unix.EEXIST)
	ack := kernelMessage(12, unix.NLMSG_ERROR, 0, number(0))
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
			want: []error{nil, nil, nil}, seen: nil,
		},
		"the last is a get": {
			datagrams: [][]byte{kernelMessage(12, unix.RTM_NEWLINK, 0, nil)},
			want:      []error{nil, nil, nil}, seen: []int{2},
		},
		"the last is a dump": {
			datagrams: [][]byte{
				kernelMessage(12, unix.RTM_NEWLINK, unix.NLM_F_MULTI, nil), kernelMessage(12, unix.RTM_NEWLINK, unix.NLM_F_MULTI, nil),
				kernelMessage(12, unix.NLMSG_DONE, unix.NLM_F_MULTI, number(0)),
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
			reqs := make([]Request, 3)
			answers := make([]Answer, len(reqs))
			err := collect(read, reqs, answers, 10, func(i int, _ Message) error {
				seen = append(seen, i)
				return nil
			})
			if !errors.Is(err, tt.err) || !slices.Equal(seen, tt.seen) {
				t.Fatalf("got %v, %v, messages for %v; want %v, messages for %v", answers, err, seen, tt.want, tt.seen)
			}
			for i, want := range tt.want {
				if !errors.Is(answers[i].Err, want) {
					t.Errorf("request %d: got %v, want %v", i, answers[i].Err, want)
				}
			}
		})
	}
}

// A batch is framed by messages that nothing answers, but for the refusal of
// all of it, behind which nothing comes.
func TestCollectBatch(t *testing.T) {
	reqs := []Request{{Frame: true}, {}, {}, {Frame: true}}
	for name, tt := range map[string]struct {
		datagrams [][]byte
		want      []error
	}{
		"committed": {[][]byte{kernelMessage(12, unix.NLMSG_ERROR, 0, number(0))}, []error{nil, nil, nil, nil}},
		"a step refused": {
			[][]byte{kernelMessage(11, unix.NLMSG_ERROR, 0, number(unix.EEXIST)), kernelMessage(12, unix.NLMSG_ERROR, 0, number(0))},
			[]error{nil, os.ErrExist, nil, nil},
		},
		"all refused": {[][]byte{kernelMessage(10, unix.NLMSG_ERROR, 0, number(unix.EPERM))}, []error{os.ErrPermission, nil, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			read := func() ([]byte, error) {
				if len(tt.datagrams) == 0 {
					return nil, io.EOF
				}
				b := tt.datagrams[0]
				tt.datagrams = tt.datagrams[1:]
				return b, nil
			}
			answers := make([]Answer, len(reqs))
			if err := collect(read, reqs, answers, 10, nil); err != nil {
				t.Fatal(err)
			}
			for i, want := range tt.want {
				if !errors.Is(answers[i].Err, want) {
					t.Errorf("message %d: got %v, want %v", i, answers[i].Err, want)
				}
			}
		})
	}
}

// A dump that changes under the kernel's hands the first n times.
func TestDumpIsRetried(t *testing.T) {
	for _, interrupted := range []Answer{{Changed: true}, {Err: unix.EINTR}} {
		for n, asked := range map[int]int{0: 1, 3: 4, 100: dumpTries} {
			tries, got := 0, 0
			err := dump(func(_ []Request, each func(int, Message) error) ([]Answer, error) {
				if tries++; tries <= n {
					return []Answer{interrupted}, each(0, Message{})
				}
				return []Answer{{}}, each(0, Message{})
			}, Request{}, func(Message) error { got++; return nil })
			if got != 1 || tries != asked || errors.Is(err, ErrChanged) != (n > dumpTries) {
				t.Errorf("changed %d times: got %d messages, %v after %d dumps; want one, after %d", n, got, err, tries, asked)
			}
		}
	}
}
