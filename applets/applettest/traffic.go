package applettest

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
)

// Timeout is how long a test waits for an answer that has to come.
var Timeout = kerneltest.Timeout(15 * time.Second)

// Echo answers with the container's ID on port 7 of each of its addresses until the test ends.
func (h *Host) Echo(c Container) {
	h.Helper()
	err := c.NS.Do(func() error {
		l, err := net.Listen("tcp", ":7")
		if err != nil {
			return err
		}
		h.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Write([]byte(c.ID))
				conn.Close()
			}
		}()
		return nil
	})
	if err != nil {
		h.Fatal(err)
	}
}

// Connect opens a connection from a namespace. It tries until timeout, since the kernel joins
// multicast groups and finds carriers in its own time; ECONNREFUSED ends it at once.
func Connect(ns *netns.NS, network, addr string, timeout time.Duration) (c net.Conn, err error) {
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		err = ns.Do(func() (err error) {
			c, err = net.DialTimeout(network, addr, time.Until(end))
			return err
		})
		if err == nil || errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) {
			return c, err
		}
	}
}

// Ask returns what [Host.Echo] answers at an address to a client in ns; "" after the timeout.
func Ask(t testing.TB, ns *netns.NS, addr string, timeout time.Duration) string {
	t.Helper()
	c, err := Connect(ns, "tcp", net.JoinHostPort(addr, "7"), timeout)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(Timeout))
	b := make([]byte, 64)
	k, _ := c.Read(b)
	return string(b[:k])
}

// NoProbes makes neighbours of a link valid for hours: an address that has moved is found
// only if that is announced.
func NoProbes(t testing.TB, ns *netns.NS, link string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		dir := "net/" + family + "/neigh/" + link + "/"
		err := ns.SetSysctls(netns.Sysctl{Key: dir + "base_reachable_time_ms", Value: "36000000"},
			netns.Sysctl{Key: dir + "delay_first_probe_time", Value: "36000"})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// SetDAD makes duplicate address detection, on links that a namespace gets from now on, begin
// within delay seconds and send so many solicitations, one a second.
func SetDAD(t testing.TB, ns *netns.NS, delay, transmits string) {
	t.Helper()
	err := ns.SetSysctls(
		netns.Sysctl{Key: "net/ipv6/conf/default/router_solicitation_delay", Value: delay, Optional: true},
		netns.Sysctl{Key: "net/ipv6/conf/default/dad_transmits", Value: transmits, Optional: true})
	if err != nil {
		t.Fatal(err)
	}
}
