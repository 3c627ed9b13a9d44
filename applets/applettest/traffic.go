package applettest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
)

// Timeout limits how long a test waits for an answer.
var Timeout = kerneltest.Timeout(15 * time.Second)

// Listen answers over TCP and UDP on ports of all addresses of a namespace until the test ends. The
// answer is the question, which is one byte, the name, and the client's address. Without ports it
// listens on 80.
func (h *Host) Listen(ns *netns.NS, name string, ports ...string) {
	h.Helper()
	if len(ports) == 0 {
		ports = []string{"80"}
	}
	for _, port := range ports {
		for _, family := range []string{"4", "6"} {
			h.NoError(ns.Do(func() error {
				l, err := net.Listen("tcp"+family, ":"+port)
				if err != nil {
					return err
				}
				h.Cleanup(func() { l.Close() })
				u, err := net.ListenPacket("udp"+family, ":"+port)
				if err != nil {
					return err
				}
				h.Cleanup(func() { u.Close() })
				go answerStreams(l, name)
				go answerPackets(u, name)
				return nil
			}))
		}
	}
}

// answerStreams reads the request before it answers: closing a connection with unread data sends a
// reset, which may overtake the answer.
func answerStreams(l net.Listener, name string) {
	accept(l, func(c net.Conn) {
		question := make([]byte, 1)
		if _, err := c.Read(question); err == nil {
			fmt.Fprintf(c, "%s%s %s", question, name, host(c.RemoteAddr()))
		}
	})
}

// accept calls answer for each connection and closes it, until the listener is closed.
func accept(l net.Listener, answer func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			answer(c)
		}()
	}
}

func answerPackets(u net.PacketConn, name string) {
	b := make([]byte, 100)
	for {
		k, from, err := u.ReadFrom(b)
		if err != nil {
			return
		}
		u.WriteTo(fmt.Appendf(nil, "%s%s %s", b[:k], name, host(from)), from)
	}
}

func host(a net.Addr) string {
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap().String()
}

// Connect opens a connection from a namespace. It retries until timeout, since the kernel joins
// multicast groups and detects carriers asynchronously. ECONNREFUSED is returned at once.
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

// EchoLines echoes each line that TCP port 80 of a namespace receives until the test ends. The first
// line of an answer has the name and the client's address, unless the name is empty.
func (h *Host) EchoLines(ns *netns.NS, name string) (l net.Listener) {
	h.Helper()
	h.NoError(ns.Do(func() (err error) { l, err = net.Listen("tcp", "[::]:80"); return err }))
	h.Cleanup(func() { l.Close() })
	go accept(l, func(c net.Conn) {
		if name != "" {
			fmt.Fprintf(c, "%s from %s\n", name, c.RemoteAddr())
		}
		for lines := bufio.NewScanner(c); lines.Scan(); {
			fmt.Fprintf(c, "%s\n", lines.Text())
		}
	})
	return l
}

// Occupy binds a socket that does not answer to an address of a namespace until the test ends.
func (h *Host) Occupy(ns *netns.NS, network, addr string) {
	h.Helper()
	h.NoError(ns.Do(func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err == nil {
				h.Cleanup(func() { c.Close() })
			}
			return err
		}
		l, err := net.Listen(network, addr)
		if err == nil {
			h.Cleanup(func() { l.Close() })
		}
		return err
	}))
}

// Say sends a question on a connection and returns the answer. Since it repeats questions that the
// network may lose, it skips answers to earlier ones.
func (h *Host) Say(c net.Conn) string {
	h.asked++
	again := Timeout
	if _, ok := c.(*net.UDPConn); ok {
		again = time.Second
	}
	b := make([]byte, 100)
	for end := time.Now().Add(Timeout); time.Now().Before(end); {
		c.SetDeadline(time.Now().Add(again))
		c.Write([]byte{h.asked})
		k, err := c.Read(b)
		for ; err == nil && k > 0; k, err = c.Read(b) {
			if b[0] == h.asked {
				return string(b[1:k])
			}
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	return "no answer"
}

// Ask sends a question on a new connection and returns the answer.
func (h *Host) Ask(from *netns.NS, network, to string) string {
	c, err := Connect(from, network, to, Timeout)
	if err != nil {
		return "no answer"
	}
	defer c.Close()
	return h.Say(c)
}

// Who returns the name that answers on port 80 of an address, or "" after the timeout.
func (h *Host) Who(from *netns.NS, addr string, timeout time.Duration) string {
	h.Helper()
	c, err := Connect(from, "tcp", net.JoinHostPort(addr, "80"), timeout)
	if err != nil {
		return ""
	}
	defer c.Close()
	name, _, _ := strings.Cut(h.Say(c), " ")
	return name
}

// WantAnswer requires an answer from an address over TCP and over UDP.
func (h *Host) WantAnswer(from *netns.NS, to, want string) {
	h.Helper()
	h.Want(from, "tcp", to, want)
	h.Want(from, "udp", to, want)
}

// Want requires an answer from an address.
func (h *Host) Want(from *netns.NS, network, to, want string) {
	h.Helper()
	if got := h.Ask(from, network, to); got != want {
		h.Errorf("%s %s: got %q, want %q", network, to, got, want)
	}
}

// never is how long [Host.WantNone] waits for an answer.
const never = 150 * time.Millisecond

// WantNone sends one question, which must not be answered.
func (h *Host) WantNone(from *netns.NS, network, to string) {
	h.Helper()
	var answer string
	h.NoError(from.Do(func() error {
		c, err := net.DialTimeout(network, to, never)
		if err != nil {
			return nil
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(never))
		b := make([]byte, 100)
		if _, err := c.Write([]byte("?")); err == nil {
			k, _ := c.Read(b)
			answer = fmt.Sprintf("a connection, and %q", b[:k])
			if network == "udp" && k == 0 {
				answer = ""
			}
		}
		return nil
	}))
	if answer != "" {
		h.Errorf("%s %s: got %s, want no answer", network, to, answer)
	}
}

// NoProbes makes the neighbour entries of a link valid for hours, so that a host learns of a moved
// address only from an announcement.
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

// SetDAD configures duplicate address detection for new links of a namespace: it starts within
// delay seconds and sends that many solicitations, one per second.
func SetDAD(t testing.TB, ns *netns.NS, delay, transmits string) {
	t.Helper()
	err := ns.SetSysctls(
		netns.Sysctl{Key: "net/ipv6/conf/default/router_solicitation_delay", Value: delay, Optional: true},
		netns.Sysctl{Key: "net/ipv6/conf/default/dad_transmits", Value: transmits, Optional: true})
	if err != nil {
		t.Fatal(err)
	}
}
