//go:build !no_portmap

package applets_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A portNet is a host with a bridge, two containers on it and a machine
// outside. Container c1 is the box's own. A host has 192.0.2.1 and fd00:2::1
// outside, and 10.9.0.1 and fd00:9::1 on the bridge.
type portNet struct {
	*metaBox
	two, outside *rtnl.NS
	paths        map[string]string // of the containers' namespaces; links that tests may cut
	asked        byte              // the last question
}

func newPortNet(t *testing.T) *portNet {
	n := &portNet{metaBox: newMetaBox(t), two: kerneltest.NS(t), outside: kerneltest.NS(t), paths: map[string]string{}}
	kerneltest.LoUp(t, n.host)
	host := kerneltest.Dial(t, n.host)
	for key, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		// else nothing is forwarded to neighbours before the link-local address is checked
		"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
	} {
		n.ok(n.host.SetSysctl(key, value))
	}
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error { return host.AddLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true}) })
	br := n.addresses(host, "br0", "10.9.0.1/24", "fd00:9::1/64")
	dir := t.TempDir()
	hairpin := true // as bridge's hairpinMode; where br_netfilter is on, a container reaches its own port only so
	for id, ns := range map[string]*rtnl.NS{"c1": n.cont, "c2": n.two} {
		n.paths[id] = filepath.Join(dir, id)
		n.ok(os.Symlink(kerneltest.NSPath(t, ns), n.paths[id]))
		port, err := host.CreateLink(rtnl.LinkSpec{Name: "v" + id, Master: br, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: ns}})
		n.ok(err)
		n.ok(host.SetLink(port.Index, rtnl.LinkChange{Hairpin: &hairpin}))
		last := id[1:] // 10.9.0.11, 10.9.0.12
		n.member(ns, "10.9.0.1"+last+"/24", "fd00:9::1"+last+"/64", "10.9.0.1", "fd00:9::1")
	}
	n.ok(host.AddLink(rtnl.LinkSpec{Name: "out0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: n.outside}}))
	n.addresses(host, "out0", "192.0.2.1/24", "fd00:2::1/64")
	n.member(n.outside, "192.0.2.2/24", "fd00:2::2/64", "192.0.2.1", "fd00:2::1")
	return n
}

func (n *portNet) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// addresses sets a link up with the addresses and returns its index.
func (n *portNet) addresses(c *rtnl.Conn, name string, prefixes ...string) uint32 {
	n.t.Helper()
	l, err := c.Link(name)
	n.ok(err)
	up := true
	ops := []rtnl.Op{rtnl.ChangeLink(l.Index, rtnl.LinkChange{Up: &up})}
	for _, p := range prefixes {
		ops = append(ops, rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(p), NoDAD: true}))
	}
	n.ok(c.Do(ops...))
	return l.Index
}

// member configures eth0 of a namespace.
func (n *portNet) member(ns *rtnl.NS, four, six, gw4, gw6 string) {
	n.t.Helper()
	kerneltest.LoUp(n.t, ns)
	c := kerneltest.Dial(n.t, ns)
	link := n.addresses(c, "eth0", four, six)
	for gw, dst := range map[string]string{gw4: "0.0.0.0/0", gw6: "::/0"} {
		n.ok(c.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: link}))
	}
}

// serve answers on port 80 with the question, a byte, the name and the address that asked.
func (n *portNet) serve(ns *rtnl.NS, name string) {
	n.t.Helper()
	for _, family := range []string{"4", "6"} {
		n.ok(ns.Do(func() error {
			l, err := net.Listen("tcp"+family, ":80")
			if err != nil {
				return err
			}
			u, err := net.ListenPacket("udp"+family, ":80")
			if err != nil {
				return err
			}
			n.t.Cleanup(func() { l.Close(); u.Close() })
			go answerStreams(l, name)
			go answerPackets(u, name)
			return nil
		}))
	}
}

// answerStreams answers whoever has asked: closing a connection with a question unread is
// a reset, which may overtake the answer.
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

// say asks on the connection and returns the answer. What a network may lose is asked
// again, so an answer to an earlier question may come late, and is passed over.
func (n *portNet) say(c net.Conn) string {
	n.asked++
	again := patience
	if _, ok := c.(*net.UDPConn); ok {
		again = time.Second
	}
	b := make([]byte, 100)
	for end := time.Now().Add(patience); time.Now().Before(end); {
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

// answer is what a new connection from a namespace to an address is to get.
type answer struct {
	from     *rtnl.NS
	to, want string
}

// answers asks each over TCP and over UDP.
func (n *portNet) answers(all []answer) {
	n.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for _, a := range all {
			if got := n.ask(a.from, network, a.to); got != a.want {
				n.t.Errorf("%s %s: got %q, want %q", network, a.to, got, a.want)
			}
		}
	}
}

// ask returns the answer to a new connection.
func (n *portNet) ask(ns *rtnl.NS, network, to string) string {
	c, err := connect(ns, network, to, patience)
	if err != nil {
		return "no answer"
	}
	defer c.Close()
	return n.say(c)
}

// verb runs a verb of portmap for a container, with mappings.
func (n *portNet) verb(v spec.Verb, id, mappings string) error {
	n.t.Helper()
	last := id[1:]
	prev := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],
		"ips":[{"address":"10.9.0.1%s/24","interface":0},{"address":"fd00:9::1%s/64","interface":0}]}`, n.paths[id], last, last)
	keys := `"runtimeConfig":{"portMappings":[` + mappings + `]}`
	_, err := n.run("portmap", v, spec.Call{ContainerID: id, IfName: "eth0", NetNS: n.paths[id]}, keys, prev)
	return err
}

// elements renders what is published.
func (n *portNet) elements() string {
	n.t.Helper()
	var all []string
	for _, id := range []string{"c1", "c2"} {
		owned, err := nft.Open(n.host).Owned(spec.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}, nft.KindPortMap)
		n.ok(err)
		for _, e := range owned {
			all = append(all, id+" "+e.Text)
		}
	}
	return strings.Join(all, "\n") + "\nfiles " + n.files()
}

const both = `{"hostPort":8080,"containerPort":80},{"hostPort":8080,"containerPort":80,"protocol":"UDP"}`

// [S] done right: containers of the same subnet reach the port, capital
// letters in the protocol work, and passing traffic is left alone.
func TestKernelPortmap(t *testing.T) {
	n := newPortNet(t)
	n.serve(n.cont, "one")
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(n.verb(spec.Check, "c1", both))
	n.answers([]answer{
		{n.outside, "192.0.2.1:8080", "one 192.0.2.2"},
		{n.outside, "[fd00:2::1]:8080", "one fd00:2::2"},
		{n.host, "127.0.0.1:8080", "one 10.9.0.1"},
		{n.host, "192.0.2.1:8080", "one 192.0.2.1"},
		{n.host, "[fd00:2::1]:8080", "one fd00:2::1"},
		{n.two, "10.9.0.1:8080", "one 10.9.0.1"},
		{n.two, "192.0.2.1:8080", "one 10.9.0.1"},
		{n.two, "[fd00:9::1]:8080", "one fd00:9::1"},
		{n.cont, "10.9.0.1:8080", "one 10.9.0.1"},
	})
	n.ok(n.verb(spec.Del, "c1", ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after DEL: %s", got)
	}
	if got := n.ask(n.outside, "tcp", "192.0.2.1:8080"); got != "no answer" {
		t.Errorf("after DEL: %q", got)
	}
}

// N6: a port of a live attachment is refused with the owner's name, one of an
// attachment whose namespace is gone is taken over. [S] in the reference the
// first rule wins, for ever.
func TestKernelPortmapTaken(t *testing.T) {
	for name, end := range map[string]func(n *portNet){
		"namespace gone": func(n *portNet) { os.Remove(n.paths["c1"]) },
		"another namespace there": func(n *portNet) {
			os.Remove(n.paths["c1"])
			os.Symlink(n.paths["c2"], n.paths["c1"])
		},
		"a file there": func(n *portNet) {
			os.Remove(n.paths["c1"])
			os.WriteFile(n.paths["c1"], nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newPortNet(t)
			n.serve(n.cont, "one")
			n.serve(n.two, "two")
			n.ok(n.verb(spec.Add, "c1", both))
			before := n.elements()
			err := n.verb(spec.Add, "c2", `{"hostPort":9090,"containerPort":80},`+both)
			if err == nil || spec.AsError(err).Code != spec.CodeBusy || !strings.Contains(err.Error(), "net1/c1/eth0: publish another host port") {
				t.Fatalf("port of a live attachment: %v", err)
			}
			if after := n.elements(); after != before {
				t.Errorf("a refused ADD changed\n%s\nto\n%s", before, after)
			}
			flow, err := connect(n.outside, "udp", "192.0.2.1:8080", patience)
			n.ok(err)
			defer flow.Close()
			if got := n.say(flow); got != "one 192.0.2.2" {
				t.Errorf("first owner: %q", got)
			}
			end(n)
			n.ok(n.verb(spec.Add, "c2", both))
			n.ok(n.verb(spec.Check, "c2", both))
			if got := n.ask(n.outside, "tcp", "192.0.2.1:8080"); got != "two 192.0.2.2" {
				t.Errorf("second owner: %q", got)
			}
			if got := n.say(flow); got != "two 192.0.2.2" {
				t.Errorf("the UDP flow to the first owner goes on: %q", got)
			}
			n.ok(n.verb(spec.Del, "c1", both)) // late, and no longer its own
			if got := n.ask(n.outside, "tcp", "192.0.2.1:8080"); got != "two 192.0.2.2" {
				t.Errorf("after the late DEL: %q", got)
			}
		})
	}
	n := newPortNet(t)
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(os.RemoveAll(n.dir))
	n.ok(os.Remove(n.paths["c1"]))
	if err := n.verb(spec.Add, "c2", both); err == nil {
		t.Error("an owner of whom nothing is known was taken for dead")
	}
}

// DEL works with a namespace and again with nothing at all. [S] the reference
// removes nothing without portMappings.
func TestKernelPortmapDel(t *testing.T) {
	n := newPortNet(t)
	n.ok(n.verb(spec.Del, "c1", both)) // before any ADD
	if text := nfttest.Ruleset(t, n.host); text != "" {
		t.Errorf("DEL made tables: %q", text)
	}
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(n.verb(spec.Add, "c2", `{"hostPort":9090,"containerPort":80}`))
	bare := spec.Call{ContainerID: "c1", IfName: "eth0"}
	for range 2 {
		n.must(n.run("portmap", spec.Del, bare, "", ""))
		if got := n.elements(); strings.Contains(got, "c1") || !strings.Contains(got, "c2 tcp dport 9090") {
			t.Errorf("after DEL: %s", got)
		}
	}
	bare.ContainerID = "c2"
	n.must(n.run("portmap", spec.Del, bare, `"backend":"nonsense","snat":"what","runtimeConfig":{"portMappings":[{"hostPort":-1}]}`, ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after DEL with a conf that does not validate: %s", got)
	}
}

// [S] re-ADD duplicates rules in the reference, and an old address stays first.
func TestKernelPortmapAgain(t *testing.T) {
	n := newPortNet(t)
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(n.verb(spec.Add, "c1", `{"hostPort":9090,"containerPort":80,"hostIP":"192.0.2.1"}`))
	if got := n.elements(); strings.Contains(got, "8080") || strings.Count(got, "9090 -> 10.9.0.11:80") != 1 {
		t.Errorf("after the third ADD: %s", got)
	}
	n.ok(n.verb(spec.Add, "c1", ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after ADD without mappings: %s", got)
	}
	if _, err := n.run("portmap", spec.Add, n.call(), "", ""); err == nil || !strings.Contains(err.Error(), "must be called as chained plugin") {
		t.Errorf("ADD without prevResult: %v", err)
	}
}

// CHECK finds what is missing and puts nothing back.
func TestKernelPortmapCheck(t *testing.T) {
	n := newPortNet(t)
	n.ok(n.verb(spec.Check, "c1", ""))
	n.ok(n.verb(spec.Add, "c1", both))
	if err := n.verb(spec.Check, "c1", both+`,{"hostPort":9090,"containerPort":80}`); err == nil || spec.AsError(err).Code != spec.CodeCheck {
		t.Errorf("mapping that is not there: %v", err)
	}
	n.ok(n.host.SetSysctl("net/ipv4/conf/br0/route_localnet", "0"))
	if err := n.verb(spec.Check, "c1", both); err == nil || !strings.Contains(err.Error(), "route_localnet") {
		t.Errorf("without route_localnet: %v", err)
	}
	n.ok(n.verb(spec.Del, "c1", both))
	if err := n.verb(spec.Check, "c1", both); err == nil || spec.AsError(err).Code != spec.CodeCheck {
		t.Errorf("after DEL: %v", err)
	}
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("CHECK made %s", got)
	}
}

// CVE-2020-8558: with route_localnet on the way out, services of the host on
// 127.0.0.1 stay out of reach for containers.
func TestKernelPortmapCVE20208558(t *testing.T) {
	n := newPortNet(t)
	n.serve(n.host, "host's own")
	n.ok(n.verb(spec.Add, "c1", both))
	if v, err := n.host.Sysctl("net/ipv4/conf/br0/route_localnet"); err != nil || v != "1" {
		t.Fatalf("route_localnet of br0: %q, %v", v, err)
	}
	c := kerneltest.Dial(t, n.two)
	link, err := c.Link("eth0")
	n.ok(err)
	lo, err := c.Link("lo")
	n.ok(err)
	n.ok(n.two.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	n.ok(c.Do(rtnl.DropAddr(lo.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("127.0.0.1/8")}),
		rtnl.NewRoute(rtnl.Route{Dst: netip.MustParsePrefix("127.0.0.0/8"), GW: netip.MustParseAddr("10.9.0.1"), Link: link.Index})))
	if flow, err := connect(n.two, "tcp", "127.0.0.1:80", 2*time.Second); err == nil {
		t.Errorf("from a container to 127.0.0.1 of the host: %q", n.say(flow))
	}
}

// Whichever change of ADD fails, nothing stays.
func TestKernelPortmapRollback(t *testing.T) {
	n := newPortNet(t)
	changes := eachFault(t, "", func() error { return n.verb(spec.Add, "c1", both) }, func(k int, err error) {
		if got := n.elements(); err != nil && got != "\nfiles " {
			t.Errorf("change %d failed and left %s", k, got)
		}
		n.ok(n.verb(spec.Del, "c1", ""))
	})
	if changes < 3 {
		t.Errorf("only %d changes asked", changes)
	}
}

func TestKernelPortmapGC(t *testing.T) {
	n := newPortNet(t)
	n.ok(n.verb(spec.Add, "c1", both))
	n.ok(n.verb(spec.Add, "c2", `{"hostPort":9090,"containerPort":80}`))
	n.must(n.run("portmap", spec.GC, spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`, ""))
	if got := n.elements(); strings.Contains(got, "8080") || !strings.Contains(got, "9090") || strings.Count(n.files(), ".json") != 1 {
		t.Errorf("after GC: %s", got)
	}
	n.must(n.run("portmap", spec.Status, spec.Call{}, "", ""))
}

// [S] in the reference the conditions of the last ADD count for everybody.
func TestKernelPortmapConditions(t *testing.T) {
	n := newPortNet(t)
	n.serve(n.cont, "one")
	n.serve(n.two, "two")
	add := func(id, conds, port string) {
		t.Helper()
		n.ok(n.verb(spec.Add, id, port+`]},"conditionsV4":`+conds+`,"x":{"y":[`))
	}
	add("c1", `["-s","192.0.2.2"]`, `{"hostPort":8080,"containerPort":80}`)
	add("c2", `["ip","saddr","198.51.100.0/24"]`, `{"hostPort":9090,"containerPort":80}`)
	if got := n.ask(n.outside, "tcp", "192.0.2.1:8080"); got != "one 192.0.2.2" {
		t.Errorf("condition that holds: %q", got)
	}
	if got := n.ask(n.outside, "tcp", "192.0.2.1:9090"); got != "no answer" {
		t.Errorf("condition that does not hold: %q", got)
	}
}

// [S] the reference marks rules with the container alone, so that DEL of one
// interface takes the ports of the others, and long IDs break it.
func TestKernelPortmapInterfaces(t *testing.T) {
	n := newPortNet(t)
	id := strings.Repeat("x", 200)
	run := func(v spec.Verb, ifName, port string) {
		t.Helper()
		prev := `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`
		keys := `"runtimeConfig":{"portMappings":[{"containerPort":80,"hostPort":` + port + `}]}`
		n.must(n.run("portmap", v, spec.Call{ContainerID: id, IfName: ifName, NetNS: n.path}, keys, prev))
	}
	run(spec.Add, "eth0", "8080")
	run(spec.Add, "eth1", "9090")
	run(spec.Del, "eth0", "8080")
	run(spec.Check, "eth1", "9090")
	text := nfttest.Ruleset(t, n.host)
	if strings.Contains(text, "8080") || !strings.Contains(text, "9090") {
		t.Errorf("after DEL of one interface:\n%s", text)
	}
	run(spec.Del, "eth1", "9090")
}

// Where /proc/sys cannot be written to, the error says how to do without; nothing stays.
func TestKernelPortmapReadOnly(t *testing.T) {
	n := newPortNet(t)
	fault.Hook = func(what string) error {
		if strings.Contains(what, "route_localnet") {
			return unix.EROFS
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	err := n.verb(spec.Add, "c1", both)
	if err == nil || spec.AsError(err).Code != spec.CodeHost || !strings.Contains(err.Error(), `set "snat" to false`) {
		t.Errorf("got %v", err)
	}
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("left %s", got)
	}
	_, err = n.run("portmap", spec.Add, n.call(), `"snat":false,"runtimeConfig":{"portMappings":[`+both+`]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`)
	n.ok(err)
}
