package rtnl_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/rtnl"
)

// A request without an answer, or with endless messages other than the answer, ends with
// os.ErrDeadlineExceeded. So does each later one on the socket.
func TestKernelRequestTimeout(t *testing.T) {
	timeout := nlconn.Timeout
	nlconn.Timeout = 20 * time.Millisecond
	t.Cleanup(func() { nlconn.Timeout = timeout })
	for name, answer := range map[string]func(kernel int, stop <-chan struct{}){
		"never":   func(int, <-chan struct{}) {},
		"forever": sendNotifications,
	} {
		t.Run(name, func(t *testing.T) {
			c := kerneltest.Dial(t, kerneltest.NS(t))
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			limit := unix.NsecToTimeval(int64(nlconn.Timeout))
			if name == "forever" { // the sender may not run for that long
				limit = unix.Timeval{}
			}
			err = errors.Join(unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit), rtnl.Replace(c, pair[0]), unix.Close(pair[0]))
			if err != nil {
				t.Fatal(err)
			}
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() { answer(pair[1], stop); close(stopped) }()
			t.Cleanup(func() { close(stop); unix.Shutdown(pair[1], unix.SHUT_RDWR); <-stopped; unix.Close(pair[1]) })
			for range 3 {
				if _, err := c.Links(); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// sendNotifications sends notifications until it is stopped.
func sendNotifications(kernel int, stop <-chan struct{}) {
	m := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], unix.RTM_NEWLINK)
	for {
		select {
		case <-stop:
			return
		default:
			unix.SendmsgN(kernel, m, nil, nil, unix.MSG_NOSIGNAL)
		}
	}
}
