package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Times within which an answer must come, after which the question is asked again, as a
// packet is lost while a worker of the kernel is late, and after which one that must not be
// answered is taken for lost.
var soon = kerneltest.Timeout(20 * time.Second)

const (
	again = 3 * time.Second
	never = 150 * time.Millisecond
)

// A site is a host with a bridge, two containers on it and a neighbour on
// another network, which has no route to the containers.
type site struct {
	t            *testing.T
	host, lan    *netns.NS
	one, two     *netns.NS
	table        *nft.Table
	hostC        *rtnl.Conn
	lanC         *rtnl.Conn
	uplink, port uint32 // in lan and on the host
}

const (
	hostLAN4, hostLAN6 = "192.0.2.1", "2001:db8::1"
	lan4, lan6         = "192.0.2.2", "2001:db8::2"
	one4, one6         = "10.1.0.2", "fd00::2"
	two4, two6         = "10.1.0.3", "fd00::3"
	bridge4, bridge6   = "10.1.0.1", "fd00::1"
)

var (
	owner = spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	other = spec.Attachment{Network: "net1", ContainerID: "c2", IfName: "eth0"}
)

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, host: kerneltest.NS(t), lan: kerneltest.NS(t), one: kerneltest.NS(t), two: kerneltest.NS(t)}
	for _, ns := range []*netns.NS{s.host, s.lan, s.one, s.two} {
		s.ok(ns.SetSysctl("net/ipv6/conf/default/accept_dad", "0")) // waits seconds
	}
	s.table = open(t, s.host)
	s.hostC, s.lanC = kerneltest.Dial(t, s.host), kerneltest.Dial(t, s.lan)
	kerneltest.LoUp(t, s.host)
	br, err := s.hostC.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true})
	s.ok(err)
	s.addr(s.hostC, br.Index, bridge4+"/24", bridge6+"/64")
	hairpin := true
	for i, c := range []*netns.NS{s.one, s.two} {
		name := fmt.Sprint("port", i+1)
		p, err := s.hostC.CreateLink(rtnl.LinkSpec{Name: name, Master: br.Index, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: c}})
		s.ok(err)
		s.ok(s.hostC.SetLink(p.Index, rtnl.LinkChange{Hairpin: &hairpin}))
		s.container(c, fmt.Sprintf("10.1.0.%d/24", i+2), fmt.Sprintf("fd00::%d/64", i+2))
	}
	s.ok(s.hostC.AddLink(rtnl.LinkSpec{Name: "uplink", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: s.lan}}))
	up, err := s.hostC.Link("uplink")
	s.ok(err)
	s.port = up.Index
	s.addr(s.hostC, up.Index, hostLAN4+"/24", hostLAN6+"/64")
	s.uplink = s.up(s.lanC, lan4+"/24", lan6+"/64")
	s.ok(s.host.SetSysctls(netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, netns.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"},
		netns.Sysctl{Key: "net/ipv4/conf/br0/route_localnet", Value: "1"}))
	s.waitUp()
	return s
}

// waitUp waits until packets pass everywhere: a test that wants none to pass must not be
// content with a network that is not there yet.
func (s *site) waitUp() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	for _, name := range []string{"port1", "port2", "uplink"} {
		l, err := s.hostC.Link(name)
		s.ok(err)
		s.ok(s.hostC.WaitUp(ctx, l.Index))
	}
	for _, end := range []struct {
		ns    *netns.NS
		addr  string
		links int // also of other addresses that end alike
	}{{s.host, bridge6, 2}, {s.lan, lan6, 1}, {s.one, one6, 1}, {s.two, two6, 1}} {
		kerneltest.Solicited(s.t, end.ns, netip.MustParseAddr(end.addr), end.links)
	}
}

// open returns a table with a lock file of the test's own.
func open(t testing.TB, ns *netns.NS) *nft.Table {
	return nft.Open(ns, nft.WithLock(filepath.Join(t.TempDir(), "lock")))
}

func (s *site) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) addr(c *rtnl.Conn, index uint32, prefixes ...string) {
	s.t.Helper()
	for _, p := range prefixes {
		s.ok(c.AddAddr(index, rtnl.Addr{Prefix: netip.MustParsePrefix(p), NoDAD: true}))
	}
}

// up gives eth0 its addresses.
func (s *site) up(c *rtnl.Conn, prefixes ...string) uint32 {
	s.t.Helper()
	l, err := c.Link("eth0")
	s.ok(err)
	up := true
	s.ok(c.SetLink(l.Index, rtnl.LinkChange{Up: &up}))
	s.addr(c, l.Index, prefixes...)
	return l.Index
}

func (s *site) container(ns *netns.NS, prefixes ...string) {
	s.t.Helper()
	c := kerneltest.Dial(s.t, ns)
	eth0 := s.up(c, prefixes...)
	s.ok(c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr(bridge4), Link: eth0}))
	s.ok(c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix("::/0"), GW: netip.MustParseAddr(bridge6), Link: eth0}))
}

func (s *site) update(fn func(x *nft.Tx) error) {
	s.t.Helper()
	s.ok(s.table.Update(context.Background(), fn))
}

// publish maps a host port of all kinds of addresses to port 80 of container one.
func (s *site) publish(change func(m *nft.PortMap)) {
	s.t.Helper()
	s.update(func(x *nft.Tx) error {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, to := range []string{one4, one6} {
				m := mapping(proto, 8080, to)
				if change != nil {
					change(&m)
				}
				if err := x.PortMap(owner, m); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// mapping sends a host port to port 80 of an address.
func mapping(proto uint8, port uint16, to string) nft.PortMap {
	a := netip.MustParseAddr(to)
	bits := 24
	if a.Is6() {
		bits = 64
	}
	return nft.PortMap{
		Proto: proto, HostPort: port, Target: netip.AddrPortFrom(a, 80),
		TargetPrefix: netip.PrefixFrom(a, bits), SNAT: true,
	}
}

// serve answers on the address with name and the address of who asks.
func (s *site) serve(ns *netns.NS, network, addr, name string) {
	s.t.Helper()
	s.ok(ns.Do(func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				return err
			}
			s.t.Cleanup(func() { c.Close() })
			go answerPackets(c, name)
			return nil
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close() })
		go answerConns(l, name)
		return nil
	}))
}

func answerPackets(c net.PacketConn, name string) {
	b := make([]byte, 100)
	for {
		_, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		c.WriteTo([]byte(name+" "+hostOf(from)), from)
	}
}

func answerConns(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, name+" "+hostOf(c.RemoteAddr()))
		c.Close()
	}
}

func hostOf(a net.Addr) string {
	host, _, _ := net.SplitHostPort(a.String())
	return host
}

// ask returns the answer from the address, or an error after the time.
func (s *site) ask(ns *netns.NS, network, addr string, wait time.Duration) (answer string, err error) {
	derr := ns.Do(func() error {
		c, err := net.DialTimeout(network, addr, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(wait))
		if strings.HasPrefix(network, "udp") {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		answer = string(b[:n])
		return err
	})
	return answer, derr
}

// want asks until there is an answer, and compares.
func (s *site) want(ns *netns.NS, network, addr, answer string) {
	s.t.Helper()
	got, err := s.ask(ns, network, addr, again)
	for end := time.Now().Add(soon); err != nil && time.Now().Before(end); {
		got, err = s.ask(ns, network, addr, again)
	}
	if err != nil || got != answer {
		s.t.Errorf("%s %s: got %q, %v; want %q", network, addr, got, err, answer)
	}
}

// refuse asks and wants no answer.
func (s *site) refuse(ns *netns.NS, network, addr string) {
	s.t.Helper()
	if got, err := s.ask(ns, network, addr, never); err == nil {
		s.t.Errorf("%s %s: got %q, want no answer", network, addr, got)
	}
}

// tool runs a program of Debian's inside ns, for rules that are not ours.
func tool(t testing.TB, ns *netns.NS, stdin, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: %s is not installed", name)
	}
	var out []byte
	err = ns.Do(func() error {
		cmd := exec.Command(path, args...)
		cmd.Stdin = strings.NewReader(stdin)
		var err error
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func render(t testing.TB, ns *netns.NS) string {
	t.Helper()
	return nfttest.Ruleset(t, ns)
}

// A flowConn is a UDP socket that keeps its port.
type flowConn struct{ c net.Conn }

func (s *site) openFlow(ns *netns.NS, to netip.AddrPort) (f flowConn) {
	s.t.Helper()
	s.ok(ns.Do(func() (err error) {
		f.c, err = net.Dial("udp", to.String())
		return err
	}))
	s.t.Cleanup(func() { f.c.Close() })
	return f
}

// ask sends packets until one is answered, or until the kernel reports that the port is
// closed, and compares. A report may be of an earlier packet.
func (f flowConn) ask(t *testing.T, answered bool) {
	t.Helper()
	var err error
	for end := time.Now().Add(soon); time.Now().Before(end); {
		f.c.SetDeadline(time.Now().Add(again))
		f.c.Write([]byte("?"))
		_, err = f.c.Read(make([]byte, 100))
		if err == nil || !answered && errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	if (err == nil) != answered || !answered && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("answered: want %v, got error %v", answered, err)
	}
}
