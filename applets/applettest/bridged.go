package applettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Bridged is a host with bridge br0, containers c1 and c2 on it, with 10.9.0.11, fd00:9::11,
// 10.9.0.12 and fd00:9::12, and a machine outside with 192.0.2.2 and fd00:2::2. The host has
// 10.9.0.1 and fd00:9::1 on the bridge, 192.0.2.1 and fd00:2::1 on out0.
type Bridged struct {
	*Host
	C1, C2  Container // their paths are symbolic links, which tests may delete
	Outside *netns.NS

	asked byte // the last question
}

// NewBridged returns one.
func NewBridged(t *testing.T) *Bridged {
	t.Helper()
	n := &Bridged{Host: NewHost(t), Outside: kerneltest.NS(t)}
	host := kerneltest.Dial(t, n.NS)
	for key, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		// else nothing is forwarded to neighbours before the link-local address is checked
		"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
	} {
		n.NoError(n.NS.SetSysctl(key, value))
	}
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error { return host.AddLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true}) })
	br := n.AddAddrs(host, "br0", "10.9.0.1/24", "fd00:9::1/64")
	dir := t.TempDir()
	hairpin := true // as bridge's hairpinMode; where br_netfilter is on, a container reaches its own port only so
	for _, id := range []string{"c1", "c2"} {
		c := n.container(id)
		*c = n.Container(id)
		path := filepath.Join(dir, id)
		n.NoError(os.Symlink(c.Path, path))
		ns := c.NS
		c.Path = path
		port, err := host.CreateLink(rtnl.LinkSpec{Name: "v" + id, Master: br, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns}})
		n.NoError(err)
		n.NoError(host.SetLink(port.Index, rtnl.LinkChange{Hairpin: &hairpin}))
		last := id[1:] // 10.9.0.11, 10.9.0.12
		n.Configure(ns, "10.9.0.1"+last+"/24", "fd00:9::1"+last+"/64", "10.9.0.1", "fd00:9::1")
	}
	n.NoError(host.AddLink(rtnl.LinkSpec{Name: "out0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: n.Outside}}))
	n.AddAddrs(host, "out0", "192.0.2.1/24", "fd00:2::1/64")
	n.Configure(n.Outside, "192.0.2.2/24", "fd00:2::2/64", "192.0.2.1", "fd00:2::1")
	return n
}

// AddAddrs sets a link up with the addresses and returns its index.
func (n *Bridged) AddAddrs(c *rtnl.Conn, name string, prefixes ...string) uint32 {
	n.Helper()
	l, err := c.Link(name)
	n.NoError(err)
	up := true
	ops := []rtnl.Op{rtnl.ChangeLink(l.Index, rtnl.LinkChange{Up: &up})}
	for _, p := range prefixes {
		ops = append(ops, rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(p), NoDAD: true}))
	}
	n.NoError(c.Do(ops...))
	return l.Index
}

// Configure configures eth0 of a namespace.
func (n *Bridged) Configure(ns *netns.NS, four, six, gw4, gw6 string) {
	n.Helper()
	kerneltest.LoUp(n.T, ns)
	c := kerneltest.Dial(n.T, ns)
	link := n.AddAddrs(c, "eth0", four, six)
	for gw, dst := range map[string]string{gw4: "0.0.0.0/0", gw6: "::/0"} {
		n.NoError(c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: link}))
	}
}

// Serve answers on port 80, until the test ends, with the question, a byte, the name and the address that asked.
func (n *Bridged) Serve(ns *netns.NS, name string) {
	n.Helper()
	for _, family := range []string{"4", "6"} {
		n.NoError(ns.Do(func() error {
			l, err := net.Listen("tcp"+family, ":80")
			if err != nil {
				return err
			}
			u, err := net.ListenPacket("udp"+family, ":80")
			if err != nil {
				return err
			}
			n.Cleanup(func() { l.Close(); u.Close() })
			go answerStreams(l, name)
			go answerPackets(u, name)
			return nil
		}))
	}
}

// answerStreams reads the request of each connection and answers it: closing a connection with unread
// data is a reset, which may overtake the answer.
func answerStreams(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			question := make([]byte, 1)
			if _, err := c.Read(question); err == nil {
				fmt.Fprintf(c, "%s%s %s", question, name, host(c.RemoteAddr()))
			}
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

// Say asks on the connection and returns the answer. What a network may lose is asked
// again, so an answer to an earlier question may come late, and is passed over.
func (n *Bridged) Say(c net.Conn) string {
	n.asked++
	again := Timeout
	if _, ok := c.(*net.UDPConn); ok {
		again = time.Second
	}
	b := make([]byte, 100)
	for end := time.Now().Add(Timeout); time.Now().Before(end); {
		c.SetDeadline(time.Now().Add(again))
		c.Write([]byte{n.asked})
		k, err := c.Read(b)
		for ; err == nil && k > 0; k, err = c.Read(b) {
			if b[0] == n.asked {
				return string(b[1:k])
			}
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	return "no answer"
}

// WantAnswer asks at an address over TCP and over UDP.
func (n *Bridged) WantAnswer(from *netns.NS, to, want string) {
	n.Helper()
	for _, network := range []string{"tcp", "udp"} {
		if got := n.Ask(from, network, to); got != want {
			n.Errorf("%s %s: got %q, want %q", network, to, got, want)
		}
	}
}

// Ask returns the answer to a new connection.
func (n *Bridged) Ask(ns *netns.NS, network, to string) string {
	c, err := Connect(ns, network, to, Timeout)
	if err != nil {
		return "no answer"
	}
	defer c.Close()
	return n.Say(c)
}

// container returns the one of an ID.
func (n *Bridged) container(id string) *Container {
	if id == "c1" {
		return &n.C1
	}
	return &n.C2
}

// BothProtocols are mappings of port 8080 of both protocols.
const BothProtocols = `{"hostPort":8080,"containerPort":80},{"hostPort":8080,"containerPort":80,"protocol":"UDP"}`

// Publish runs a verb of portmap for a container, with mappings.
func (n *Bridged) Publish(verb spec.Verb, id, mappings string) error {
	n.Helper()
	c, last := n.container(id), id[1:]
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],
		"ips":[{"address":"10.9.0.1%s/24","interface":0},{"address":"fd00:9::1%s/64","interface":0}]}`, c.Path, last, last)
	_, err := n.Do(verb, "portmap", c.Call(), `"runtimeConfig":{"portMappings":[`+mappings+`]}`, prev)
	return err
}
