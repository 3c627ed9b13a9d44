package netns_test

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
)

// closer counts calls of Close.
type closer struct{ times *int }

func (c closer) Close() error { *c.times++; return nil }

// In a shared namespace, nested calls work. A kept resource is opened once for it and once for the
// host, and closed by end instead of Close.
func TestKernelShareKeeps(t *testing.T) {
	host := kerneltest.NS(t)
	ns, err := netns.Open(kerneltest.NSPath(t, host))
	if err != nil {
		t.Fatal(err)
	}
	end, ok := ns.Share()
	if !ok {
		t.Fatal("not shared")
	}
	want := kerneltest.Cookie(t, host)
	err = ns.Do(func() error {
		same, err := ns.Same(netns.Host())
		cookie, cerr := ns.Cookie() // enters the namespace too
		if err != nil || cerr != nil || !same || cookie != want {
			t.Errorf("within it: in it %t, %v; cookie %d, %v, want %d", same, err, cookie, cerr, want)
		}
		return ns.Do(func() error { return unix.EXDEV })
	})
	if !errors.Is(err, unix.EXDEV) {
		t.Errorf("within it, again: %v", err)
	}
	for range 2 { // the socket that was opened for the cookie, and a new one
		fd, err := ns.Socket(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if cookie, err := netns.SocketCookie(fd); err != nil || cookie != want {
			t.Errorf("socket: cookie %d, %v, want %d", cookie, err, want)
		}
	}
	if same, err := ns.Host().Same(netns.Host()); err != nil || !same {
		t.Errorf("of the host: another namespace, %v", err)
	}
	opened, closed := 0, 0
	for range 2 {
		for _, of := range []*netns.NS{ns, ns.Host()} {
			_, err := netns.Keep(of, 1, func(kept bool) (closer, error) {
				if opened++; !kept {
					t.Error("it is not kept")
				}
				return closer{&closed}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			of.Close()
		}
	}
	_, err = netns.Keep(ns, 2, func(bool) (io.Closer, error) { return nil, unix.EACCES })
	if !errors.Is(err, unix.EACCES) || opened != 2 || closed != 0 {
		t.Errorf("kept: %v, opened %d times, closed %d", err, opened, closed)
	}
	if err := end(); err != nil || closed != 2 {
		t.Errorf("end: %v, closed %d times", err, closed)
	}
}

// Without Share each caller opens and closes its own. The namespace of the process cannot be
// shared.
func TestKernelKeepWithoutShare(t *testing.T) {
	ns := kerneltest.NS(t)
	opened, closed := 0, 0
	var none *netns.NS
	for _, of := range []*netns.NS{ns, ns, none.Host()} {
		c, err := netns.Keep(of, 1, func(kept bool) (closer, error) {
			if opened++; kept {
				t.Error("it is kept")
			}
			return closer{&closed}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if opened != 3 || closed != 3 {
		t.Errorf("opened %d times, closed %d", opened, closed)
	}
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := here.Share(); ok {
		t.Error("the namespace of the process is shared")
	}
	if err := here.Close(); err != nil || here.FD() >= 0 {
		t.Errorf("not closed: %d, %v", here.FD(), err)
	}
}
