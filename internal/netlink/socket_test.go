package netlink

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// here opens a socket in the namespace of the test.
func here(open func() error) error { return open() }

// getLink asks for a link by name.
func getLink(name string) Request {
	b := make(Buf, unix.SizeofIfInfomsg)
	b.Text(unix.IFLA_IFNAME, name)
	return Request{Type: unix.RTM_GETLINK, Data: b}
}

func nothing(int, Message) error { return nil }

// A receive buffer that overflows is an error, once: the socket must work
// afterwards, and not wait for an answer that the kernel dropped, which has another error.
func TestKernelOverflow(t *testing.T) {
	s, err := Open(unix.NETLINK_ROUTE, here)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Within(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // the kernel makes it 2,304 bytes
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Exchange(slices.Repeat([]Request{getLink("no-such-link")}, 64), nothing)
	if !errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("got %v, want %v", err, unix.ENOBUFS)
	}
	got := ""
	err = s.Get(getLink("no-such-link"), func(Message) error { got = "a link"; return nil })
	if !errors.Is(err, unix.ENODEV) || got != "" {
		t.Errorf("the next request: got %v %s, want %v", err, got, unix.ENODEV)
	}
}

// Another socket may not answer in the kernel's place.
func TestKernelSender(t *testing.T) {
	s, err := Open(unix.NETLINK_ROUTE, here)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var port uint32
	err = s.Within(func(fd int) error {
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
	forged := kernelMessage(1, unix.NLMSG_ERROR, 0, number(0))
	err = unix.Sendto(other, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("sending to it: got %v, want %v", err, unix.ECONNREFUSED)
	}
	if err := s.Get(getLink("no-such-link"), func(Message) error { return nil }); !errors.Is(err, unix.ENODEV) {
		t.Errorf("got %v, want %v", err, unix.ENODEV)
	}
}

func TestKernelSocket(t *testing.T) {
	s, err := Open(unix.NETLINK_ROUTE, here)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.seq = ^uint32(0) - 2 // the numbers begin anew, and not at 0
	for range 4 {
		seen := 0
		answers, err := s.Exchange([]Request{getLink("no-such-link"), getLink("lo")}, func(i int, m Message) error {
			seen += i
			return nil
		})
		if err != nil || !errors.Is(answers[0].Err, unix.ENODEV) || answers[1].Err != nil || seen != 1 {
			t.Errorf("got %+v, %v, %d messages", answers, err, seen)
		}
	}
	long := getLink("lo")
	long.Data = make([]byte, longestData+1)
	if _, err := s.Exchange([]Request{long}, nothing); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a request too long: got %v", err)
	}
	s.Close()
	if _, err := s.Exchange([]Request{getLink("lo")}, nothing); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
	refused := errors.New("refused")
	if _, err := Open(unix.NETLINK_ROUTE, func(func() error) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a namespace that cannot be entered: got %v", err)
	}
}

// Nothing happens, so waiting ends with the context, and with the socket.
func TestKernelWait(t *testing.T) {
	s, err := Listen(unix.NETLINK_ROUTE, unix.RTMGRP_IPV6_PREFIX, here)
	if err != nil {
		t.Fatal(err)
	}
	const pause = 10 * time.Millisecond
	start := time.Now() // before the context's time begins
	ctx, cancel := context.WithTimeout(t.Context(), pause)
	defer cancel()
	if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if took := time.Since(start); took < pause {
		t.Errorf("waited for %s, want %s", took, pause)
	}
	if err := s.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context that is over: got %v", err)
	}
	s.Close()
	if err := s.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: got %v", err)
	}
}
