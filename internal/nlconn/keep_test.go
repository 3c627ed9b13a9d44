package nlconn

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
)

// newNS returns a namespace that the test closes.
func newNS(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// openIn opens a connection, which must work.
func openIn(t *testing.T, ns *netns.NS) *Conn {
	t.Helper()
	c, err := Open(ns, unix.NETLINK_ROUTE)
	if err == nil {
		_, err = c.Execute(getLink(t, "lo"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Connections to a shared namespace are one until its end. Those that Listen returns are closed by
// the caller.
func TestKernelSharedConnection(t *testing.T) {
	ns := newNS(t)
	end, ok := ns.Share()
	if !ok {
		t.Fatal("the namespace is not shared")
	}
	one := openIn(t, ns)
	one.Close()
	if two := openIn(t, ns); two != one {
		t.Error("a second connection")
	}
	own, err := Listen(ns, unix.NETLINK_ROUTE, 0)
	if err != nil {
		t.Fatal(err)
	}
	if own == one {
		t.Error("Listen returns what others use")
	}
	own.Close()
	if err := end(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]*Conn{"kept": one, "Listen's": own} {
		if _, err := c.Execute(getLink(t, "lo")); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s, closed: %v", name, err)
		}
	}
}

// A connection that is slow to close stays open for the next Open in its namespace.
func TestKernelSlowCloseReused(t *testing.T) {
	one, two := newNS(t), newNS(t)
	SlowToClose(unix.NETLINK_ROUTE, time.Hour)
	defer SlowToClose(unix.NETLINK_ROUTE, -time.Hour)
	c := openIn(t, one)
	c.Close()
	if other := openIn(t, two); other == c {
		t.Error("the connection of another namespace")
	}
	if again := openIn(t, one); again != c {
		t.Error("it was not idle")
	}
	if busy := openIn(t, one); busy == c {
		t.Error("it is in use")
	}
	SlowToClose(unix.NETLINK_ROUTE, -time.Hour)
	c.Close()
	if _, err := c.Execute(getLink(t, "lo")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
