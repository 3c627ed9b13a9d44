package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
)

// connect opens a connection that the test closes.
func connect(t *testing.T) *Conn {
	t.Helper()
	c, err := Open(netns.Host(), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// getLink returns a request for a link by name.
func getLink(t *testing.T, name string) netlink.Message {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, name)
	attrs, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK},
		Data:   append(make([]byte, unix.SizeofIfInfomsg), attrs...),
	}
}

// An overflow of the receive buffer is reported once. Afterwards the socket works, and does not
// wait for the answer that the kernel dropped.
func TestKernelOverflow(t *testing.T) {
	c := connect(t)
	err := c.Within(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // the kernel uses at least 2,304 bytes
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Batch(slices.Repeat([]netlink.Message{getLink(t, "no-such-link")}, 64), 0)
	if !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("got %v, want %v", err, unix.ENOBUFS)
	}
	got, err := c.Execute(getLink(t, "no-such-link"))
	if !errors.Is(err, unix.ENODEV) || len(got) != 0 {
		t.Errorf("the next request: got %v %v, want %v", err, got, unix.ENODEV)
	}
}

// Another socket cannot answer instead of the kernel.
func TestKernelOtherSendersRefused(t *testing.T) {
	c := connect(t)
	var port uint32
	err := c.Within(func(fd int) error {
		at, err := unix.Getsockname(fd)
		port = at.(*unix.SockaddrNetlink).Pid
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	forged := message(1, netlink.Error, 0, errno(0))
	forged.Header.Length = unix.NLMSG_HDRLEN + 4
	b, err := forged.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Sendto(other, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("sending to it: got %v, want %v", err, unix.ECONNREFUSED)
	}
	if _, err := c.Execute(getLink(t, "no-such-link")); !errors.Is(err, unix.ENODEV) {
		t.Errorf("got %v, want %v", err, unix.ENODEV)
	}
}

// Assumptions about the library, whose NewConn is meant for tests: sequence numbers are consecutive
// within a send, an errno has its sequence number and the kernel's text, and a dump is read to its
// end.
func TestKernelLibrary(t *testing.T) {
	s := borrow(connect(t).fd)
	defer s.putBack()
	var last uint32
	for range 3 {
		reqs := []netlink.Message{getLink(t, "no-such-link"), getLink(t, "lo")}
		for i := range reqs {
			reqs[i].Header.Flags = netlink.Request
		}
		sent, err := s.lib.SendMessages(reqs)
		if err != nil {
			t.Fatal(err)
		}
		if sent[1].Header.Sequence != sent[0].Header.Sequence+1 || last != 0 && sent[0].Header.Sequence != last+1 {
			t.Errorf("numbers %d and %d after %d", sent[0].Header.Sequence, sent[1].Header.Sequence, last)
		}
		last = sent[1].Header.Sequence
		var op *netlink.OpError
		if _, err := s.lib.Receive(); !errors.As(err, &op) || op.Sequence != sent[0].Header.Sequence || !errors.Is(op.Err, unix.ENODEV) {
			t.Errorf("got %v, want ENODEV with number %d", err, sent[0].Header.Sequence)
		}
		ms, err := s.lib.Receive()
		if err != nil || len(ms) != 1 || ms[0].Header.Sequence != last {
			t.Errorf("got %v, %v; want one link with number %d", ms, err, last)
		}
	}
}

func TestKernelConn(t *testing.T) {
	c := connect(t)
	for range 4 {
		answers, err := c.Batch([]netlink.Message{getLink(t, "no-such-link"), getLink(t, "lo")}, 0)
		if err != nil || !errors.Is(answers[0].Err, unix.ENODEV) || answers[1].Err != nil || len(answers[1].Messages) != 1 {
			t.Errorf("got %+v, %v", answers, err)
		}
	}
	links, err := c.Dump(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK}, Data: make([]byte, unix.SizeofIfInfomsg)})
	if err != nil || len(links) == 0 {
		t.Errorf("a dump: got %d messages, %v", len(links), err)
	}
	long := getLink(t, "lo")
	long.Data = make([]byte, 64<<10)
	if _, err := c.Execute(long); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a request too long: got %v", err)
	}
	create := getLink(t, "new") // without a kind
	create.Header.Type, create.Header.Flags = unix.RTM_NEWLINK, netlink.Create|netlink.Acknowledge
	if _, err := c.Execute(create); !errors.Is(err, unix.EOPNOTSUPP) || err.Error() != unix.EOPNOTSUPP.Error()+": Unknown device type" {
		t.Errorf("a link of no kind: got %v, want the kernel's explanation", err)
	}
	c.Close()
	if _, err := c.Execute(getLink(t, "lo")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if _, err := Open(ns, unix.NETLINK_ROUTE); !errors.Is(err, unix.EBADF) {
		t.Errorf("a namespace that cannot be entered: got %v", err)
	}
}

// Pending returns the received messages without waiting, and afterwards none.
func TestKernelPending(t *testing.T) {
	ns, err := netns.New()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("SKIPPED: no network namespace without CAP_SYS_ADMIN")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s, err := Listen(ns, unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ms, lost, err := s.Pending(); len(ms) > 0 || lost || err != nil {
		t.Errorf("nothing has happened: got %v, %t, %v", ms, lost, err)
	}
	up := make([]byte, unix.SizeofIfInfomsg) // for lo
	binary.NativeEndian.PutUint32(up[4:], 1)
	binary.NativeEndian.PutUint32(up[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(up[12:], unix.IFF_UP)
	if _, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Acknowledge}, Data: up}); err != nil {
		t.Fatal(err)
	}
	if ms, lost, err := s.Pending(); len(ms) != 1 || ms[0].Header.Type != unix.RTM_NEWLINK || lost || err != nil {
		t.Errorf("lo is up: got %v, %t, %v", ms, lost, err)
	}
	if ms, _, err := s.Pending(); len(ms) > 0 || err != nil {
		t.Errorf("all is read: got %v, %v", ms, err)
	}
	s.Close()
	if _, _, err := s.Pending(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
}

// Without messages, Wait ends with the context or with the socket.
func TestKernelWait(t *testing.T) {
	s, err := Listen(netns.Host(), unix.NETLINK_ROUTE, unix.RTMGRP_IPV6_PREFIX)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context that is over: got %v", err)
	}
	s.Close()
	if err := s.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
}
