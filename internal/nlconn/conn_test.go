package nlconn

import (
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A fake is a [netlink.Socket] that returns prepared datagrams.
type fake struct{ datagrams [][]netlink.Message }

func (f *fake) Close() error                         { return nil }
func (f *fake) Send(netlink.Message) error           { return nil }
func (f *fake) SendMessages([]netlink.Message) error { return nil }

func (f *fake) Receive() ([]netlink.Message, error) {
	if len(f.datagrams) == 0 {
		return nil, io.EOF
	}
	d := f.datagrams[0]
	f.datagrams = f.datagrams[1:]
	return d, nil
}

func (f *fake) ReceiveIter() iter.Seq2[netlink.Message, error] { return received(f.Receive) }

// message returns a message of the kernel.
func message(seq uint32, typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte) netlink.Message {
	return netlink.Message{Header: netlink.Header{Sequence: seq, Type: typ, Flags: flags}, Data: data}
}

// errno returns the data of NLMSG_ERROR and NLMSG_DONE; 0 is an acknowledgement.
func errno(e unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e)))
}

// exchangeOf calls collect on datagrams that answer n requests with sequence numbers from 10.
func exchangeOf(datagrams [][]netlink.Message, n, first, last int) ([]Answer, error) {
	sent := make([]netlink.Message, n)
	for i := range sent {
		sent[i].Header.Sequence = uint32(10 + i)
	}
	answers := make([]Answer, n)
	return answers, collect(netlink.NewConn(&fake{datagrams}, 0), sent, answers, first, last)
}

// Answers of the kernel to three requests with sequence numbers from 10.
func TestCollect(t *testing.T) {
	refused := errno(unix.EEXIST)
	ack := []netlink.Message{message(12, netlink.Error, 0, errno(0))}
	newLink := netlink.HeaderType(unix.RTM_NEWLINK)
	tests := map[string]struct {
		datagrams [][]netlink.Message
		want      []error // for each request
		seen      []int   // number of messages for each request
		err       error
	}{
		"only the last is acknowledged": {
			datagrams: [][]netlink.Message{ack}, want: []error{nil, nil, nil}, seen: []int{0, 0, 0},
		},
		"one is refused": {
			datagrams: [][]netlink.Message{{message(11, netlink.Error, 0, refused)}, ack},
			want:      []error{nil, os.ErrExist, nil}, seen: []int{0, 0, 0},
		},
		"the last is refused": {
			datagrams: [][]netlink.Message{{message(10, netlink.Error, 0, refused)}, {message(12, netlink.Error, 0, refused)}},
			want:      []error{os.ErrExist, nil, os.ErrExist}, seen: []int{0, 0, 0},
		},
		"notifications and old answers between": {
			datagrams: [][]netlink.Message{
				{message(0, newLink, 0, nil)}, {message(9, netlink.Error, 0, refused)},
				{message(13, netlink.Error, 0, refused)}, {message(12, netlink.Noop, 0, nil)}, ack,
			},
			want: []error{nil, nil, nil}, seen: []int{0, 0, 0},
		},
		"the last is a get": {
			datagrams: [][]netlink.Message{{message(12, newLink, 0, nil)}},
			want:      []error{nil, nil, nil}, seen: []int{0, 0, 1},
		},
		"the last is a dump": {
			datagrams: [][]netlink.Message{
				{message(12, newLink, netlink.Multi, nil), message(12, newLink, netlink.Multi, nil)},
				{message(12, newLink, netlink.Multi, nil)},
				{message(12, netlink.Done, netlink.Multi, errno(0))},
			},
			want: []error{nil, nil, nil}, seen: []int{0, 0, 3},
		},
		"a dump that ends with an errno": {
			datagrams: [][]netlink.Message{
				{message(12, newLink, netlink.Multi, nil)}, {message(12, netlink.Done, netlink.Multi, errno(unix.EINTR))},
			},
			want: []error{nil, nil, unix.EINTR}, seen: []int{0, 0, 0},
		},
		"the socket breaks": {
			datagrams: [][]netlink.Message{{message(12, newLink, netlink.Multi, nil)}},
			want:      []error{nil, nil, nil}, seen: []int{0, 0, 0}, err: io.EOF,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			answers, err := exchangeOf(tt.datagrams, 3, 0, 2)
			var seen []int
			for i, a := range answers {
				seen = append(seen, len(a.Messages))
				if !errors.Is(a.Err, tt.want[i]) {
					t.Errorf("request %d: got %v, want %v", i, a.Err, tt.want[i])
				}
			}
			if !errors.Is(err, tt.err) || !slices.Equal(seen, tt.seen) {
				t.Errorf("got %v, messages %v; want %v, messages %v", err, seen, tt.err, tt.seen)
			}
		})
	}
}

// The messages that begin and end a transaction are not acknowledged. If the whole transaction is
// refused, the error is the only answer.
func TestCollectTransaction(t *testing.T) {
	newRule := netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE)
	for name, tt := range map[string]struct {
		datagrams [][]netlink.Message
		want      []error
	}{
		"committed": {[][]netlink.Message{{message(12, netlink.Error, 0, errno(0))}}, []error{nil, nil, nil, nil}},
		"a step refused": {
			[][]netlink.Message{{message(11, netlink.Error, 0, errno(unix.EEXIST))}, {message(12, netlink.Error, 0, errno(0))}},
			[]error{nil, os.ErrExist, nil, nil},
		},
		"with what it made": {
			[][]netlink.Message{{message(11, newRule, 0, nil)}, {message(12, newRule, 0, nil)}, {message(12, netlink.Error, 0, errno(0))}},
			[]error{nil, nil, nil, nil},
		},
		"all refused": {[][]netlink.Message{{message(10, netlink.Error, 0, errno(unix.EPERM))}}, []error{os.ErrPermission, nil, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			answers, err := exchangeOf(tt.datagrams, 4, 1, 2)
			if err != nil {
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

// A dump that was interrupted is repeated.
func TestDumpIsRetried(t *testing.T) {
	for n, asked := range map[int]int{0: 1, 3: 4, 100: dumpTries} {
		tries := 0
		got, err := dump(func() ([]netlink.Message, bool, error) {
			tries++
			return make([]netlink.Message, 1), tries <= n, nil
		})
		if len(got) != 1 || tries != asked || errors.Is(err, ErrInterrupted) != (n > dumpTries) {
			t.Errorf("interrupted %d times: got %d messages, %v after %d dumps; want one, after %d", n, len(got), err, tries, asked)
		}
	}
	_, err := dump(func() ([]netlink.Message, bool, error) { return nil, true, io.EOF })
	if !errors.Is(err, io.EOF) {
		t.Errorf("a socket that breaks: got %v", err)
	}
}
