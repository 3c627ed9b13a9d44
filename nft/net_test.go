package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A site is an applettest.Bridged with a table. The outside machine has no route to the containers.
type site struct {
	*applettest.Bridged
	table *nft.Table
}

const (
	hostLAN4, hostLAN6 = "192.0.2.1", "fd00:2::1"
	lan4, lan6         = "192.0.2.2", "fd00:2::2"
	one4, one6         = "10.9.0.11", "fd00:9::11"
	two4, two6         = "10.9.0.12", "fd00:9::12"
	bridge4, bridge6   = "10.9.0.1", "fd00:9::1"
)

var (
	owner = spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	other = spec.Attachment{Network: "net1", ContainerID: "c2", IfName: "eth0"}
)

// newSite returns a site, and runs the test in parallel.
func newSite(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	n := applettest.NewBridged(t)
	for _, dst := range []string{"0.0.0.0/0", "::/0"} {
		kerneltest.Brief(t, n.Outside, func(c *rtnl.Conn) error { return c.Do(rtnl.DropRoute(kerneltest.Route(t, c, dst))) })
	}
	n.NoError(n.NS.SetSysctl("net/ipv4/conf/br0/route_localnet", "1"))
	return &site{n, open(t, n.NS)}
}

// routeOutside adds a route through the host on the outside machine.
func (s *site) routeOutside(dst, gw string) {
	s.Helper()
	kerneltest.Brief(s.T, s.Outside, func(c *rtnl.Conn) error {
		return c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: kerneltest.Link(s.T, c, "eth0").Index})
	})
}

// open returns a table with its own lock file.
func open(t testing.TB, ns *netns.NS, more ...nft.Option) *nft.Table {
	return nft.Open(ns, append(more, nft.WithLock(filepath.Join(t.TempDir(), "lock")))...)
}

func (s *site) update(fn func(x *nft.Tx) error) {
	s.Helper()
	s.NoError(s.table.Update(s.Context(), fn))
}

// publish maps host port 8080 of TCP and UDP, both families, to port 80 of container one.
func (s *site) publish(change func(m *nft.PortMap)) {
	s.Helper()
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

// mapping returns a mapping of a host port to port 80 of an address.
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

// A flowConn is a UDP socket that keeps its source port.
type flowConn struct{ c net.Conn }

func (s *site) openFlow(ns *netns.NS, to netip.AddrPort) flowConn {
	s.Helper()
	c, err := applettest.Connect(ns, "udp", to.String(), applettest.Timeout)
	s.NoError(err)
	s.Cleanup(func() { c.Close() })
	return flowConn{c}
}

// ask sends packets until one is answered or the kernel reports a closed port, and compares the
// outcome. A report may be about an earlier packet.
func (f flowConn) ask(t *testing.T, answered bool) {
	t.Helper()
	var err error
	for end := time.Now().Add(applettest.Timeout); time.Now().Before(end); {
		f.c.SetDeadline(time.Now().Add(3 * time.Second))
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
