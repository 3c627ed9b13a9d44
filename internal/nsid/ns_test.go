package nsid_test

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/nsid"
)

// closer counts how often it is closed.
type closer struct{ times *int }

func (c closer) Close() error { *c.times++; return nil }

// What is asked within the namespace, and twice, is the same; what is kept is opened once and closed
// with the namespace.
func TestKernelNS(t *testing.T) {
	host := kerneltest.NS(t)
	ns, err := nsid.OpenNS(kerneltest.NSPath(t, host))
	if err != nil {
		t.Fatal(err)
	}
	want := kerneltest.Cookie(t, host)
	err = ns.Within(func() error {
		id, err := nsid.Current()
		cookie, cerr := ns.Cookie() // which enters as well
		if err != nil || cerr != nil || id != ns.ID() || cookie != want {
			t.Errorf("within it: ID %s, %v, want %s; cookie %d, %v, want %d", id, err, ns.ID(), cookie, cerr, want)
		}
		return ns.Within(func() error { return unix.EXDEV })
	})
	if !errors.Is(err, unix.EXDEV) {
		t.Errorf("within it, again: %v", err)
	}
	for range 2 { // the one that has the cookie, and another
		fd, err := ns.Socket(unix.NETLINK_ROUTE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if cookie, err := nsid.SocketCookie(fd); err != nil || cookie != want {
			t.Errorf("socket: cookie %d, %v, want %d", cookie, err, want)
		}
	}
	opened, closed := 0, 0
	for range 2 {
		if _, err := nsid.Keep(ns, nsid.Socket{Protocol: 1}, func() (closer, error) { opened++; return closer{&closed}, nil }); err != nil {
			t.Fatal(err)
		}
	}
	_, err = nsid.Keep(ns, nsid.Socket{Protocol: 1, Host: true}, func() (io.Closer, error) { return nil, unix.EACCES })
	if !errors.Is(err, unix.EACCES) || opened != 1 || closed != 0 {
		t.Errorf("kept: %v, opened %d times, closed %d", err, opened, closed)
	}
	if err := ns.Close(); err != nil || closed != 1 {
		t.Errorf("Close: %v, closed %d times", err, closed)
	}
}
