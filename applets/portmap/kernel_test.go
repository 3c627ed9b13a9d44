package portmap_test

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

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A bridged is an applettest.Bridged for portmap.
type bridged struct{ *applettest.Bridged }

func newBridged(t *testing.T) *bridged {
	t.Helper()
	return &bridged{applettest.NewBridged(t)}
}

// elements formats the elements of the published ports.
func (n *bridged) elements() string {
	n.Helper()
	var all []string
	for _, id := range []string{"c1", "c2"} {
		owned, err := nft.Open(n.NS).Owned(spec.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}, nft.KindPortMap)
		n.NoError(err)
		for _, e := range owned {
			all = append(all, id+" "+e.String())
		}
	}
	return strings.Join(all, "\n") + "\nfiles " + n.Files()
}

// Containers in the same subnet reach the port, the protocol may be in upper case, and traffic to
// other addresses than the host's is unchanged.
func TestKernelPortmap(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.C1.NS, "one")
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(n.Publish(spec.Check, "c1", applettest.BothProtocols))
	n.WantAnswer(n.Outside, "192.0.2.1:8080", "one 192.0.2.2")
	n.WantAnswer(n.Outside, "[fd00:2::1]:8080", "one fd00:2::2")
	n.WantAnswer(n.NS, "127.0.0.1:8080", "one 10.9.0.1")
	n.WantAnswer(n.NS, "192.0.2.1:8080", "one 192.0.2.1")
	n.WantAnswer(n.NS, "[fd00:2::1]:8080", "one fd00:2::1")
	n.WantAnswer(n.C2.NS, "10.9.0.1:8080", "one 10.9.0.1")
	n.WantAnswer(n.C2.NS, "192.0.2.1:8080", "one 10.9.0.1")
	n.WantAnswer(n.C2.NS, "[fd00:9::1]:8080", "one fd00:9::1")
	n.WantAnswer(n.C1.NS, "10.9.0.1:8080", "one 10.9.0.1")
	n.NoError(n.Publish(spec.Del, "c1", ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after DEL: %s", got)
	}
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:8080"); got != "no answer" {
		t.Errorf("after DEL: %q", got)
	}
}

// A port of a live attachment is refused with the owner's name. A port of an attachment whose
// namespace is gone is transferred. In the reference the first rule wins.
func TestKernelPortmapPortInUse(t *testing.T) {
	for name, end := range map[string]func(n *bridged){
		"namespace gone": func(n *bridged) { os.Remove(n.C1.Path) },
		"another namespace there": func(n *bridged) {
			os.Remove(n.C1.Path)
			os.Symlink(n.C2.Path, n.C1.Path)
		},
		"another namespace there, of the same ID": func(n *bridged) { // the record has the cookie of another namespace
			cookie := kerneltest.Cookie(n.T, n.C1.NS)
			recorded, another := fmt.Sprintf(`"cookie":%d`, cookie), `"cookie":1`
			files, _ := filepath.Glob(filepath.Join(n.Records, "*.json"))
			changed := 0
			for _, file := range files {
				text, err := os.ReadFile(file)
				n.NoError(err)
				changed += strings.Count(string(text), recorded)
				n.NoError(os.WriteFile(file, []byte(strings.ReplaceAll(string(text), recorded, another)), 0o600))
			}
			if changed != 1 {
				n.Fatalf("the cookie is in %d of %d records", changed, len(files))
			}
		},
		"a file there": func(n *bridged) {
			os.Remove(n.C1.Path)
			os.WriteFile(n.C1.Path, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newBridged(t)
			n.Listen(n.C1.NS, "one")
			n.Listen(n.C2.NS, "two")
			n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
			before := n.elements()
			err := n.Publish(spec.Add, "c2", `{"hostPort":9090,"containerPort":80},`+applettest.BothProtocols)
			if err == nil || spec.AsError(err).Code != spec.CodeBusy || !strings.Contains(err.Error(), " is taken by net1/c1/eth0: ") {
				t.Fatalf("port of a live attachment: %v", err)
			}
			if after := n.elements(); after != before {
				t.Errorf("a refused ADD changed\n%s\nto\n%s", before, after)
			}
			flow, err := applettest.Connect(n.Outside, "udp", "192.0.2.1:8080", applettest.Timeout)
			n.NoError(err)
			defer flow.Close()
			if got := n.Say(flow); got != "one 192.0.2.2" {
				t.Errorf("first owner: %q", got)
			}
			end(n)
			n.NoError(n.Publish(spec.Add, "c2", applettest.BothProtocols))
			n.NoError(n.Publish(spec.Check, "c2", applettest.BothProtocols))
			if got := n.Ask(n.Outside, "tcp", "192.0.2.1:8080"); got != "two 192.0.2.2" {
				t.Errorf("second owner: %q", got)
			}
			if got := n.Say(flow); got != "two 192.0.2.2" {
				t.Errorf("the UDP flow to the first owner goes on: %q", got)
			}
			n.NoError(n.Publish(spec.Del, "c1", applettest.BothProtocols)) // a late DEL, of a port with another owner
			if got := n.Ask(n.Outside, "tcp", "192.0.2.1:8080"); got != "two 192.0.2.2" {
				t.Errorf("after the late DEL: %q", got)
			}
		})
	}
	n := newBridged(t)
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(os.RemoveAll(n.Records))
	n.NoError(os.Remove(n.C1.Path))
	if err := n.Publish(spec.Add, "c2", applettest.BothProtocols); err == nil {
		t.Error("the port of an owner without a record was taken over")
	}
}

// DEL needs neither namespace nor prevResult nor portMappings. The reference deletes nothing
// without portMappings.
func TestKernelPortmapDel(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.Publish(spec.Del, "c1", applettest.BothProtocols)) // without ADD
	if text := nfttest.Ruleset(t, n.NS); text != "" {
		t.Errorf("DEL made tables: %q", text)
	}
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(n.Publish(spec.Add, "c2", `{"hostPort":9090,"containerPort":80}`))
	bare := spec.Call{ContainerID: "c1", IfName: "eth0"}
	for range 2 {
		n.Result(n.Do(spec.Del, "portmap", bare, "", ""))
		if got := n.elements(); strings.Contains(got, "c1") || !strings.Contains(got, "c2 tcp dport 9090") {
			t.Errorf("after DEL: %s", got)
		}
	}
	bare.ContainerID = "c2"
	n.Result(n.Do(spec.Del, "portmap", bare, `"backend":"nonsense","snat":"what","runtimeConfig":{"portMappings":[{"hostPort":-1}]}`, ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after DEL with a conf that does not validate: %s", got)
	}
}

// A second ADD replaces the first one. The reference duplicates rules, and keeps a former address
// first.
func TestKernelPortmapAddAgain(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(n.Publish(spec.Add, "c1", `{"hostPort":9090,"containerPort":80,"hostIP":"192.0.2.1"}`))
	if got := n.elements(); strings.Contains(got, "8080") || strings.Count(got, "9090 -> 10.9.0.11:80") != 1 {
		t.Errorf("after the third ADD: %s", got)
	}
	n.NoError(n.Publish(spec.Add, "c1", ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after ADD without mappings: %s", got)
	}
	_, err := n.Do(spec.Add, "portmap", n.C1.Call(), "", "") // no prevResult
	n.WantCode(err, spec.CodeConfig)
}

// CHECK reports what is missing, and changes nothing.
func TestKernelPortmapCheck(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.Publish(spec.Check, "c1", ""))
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	if err := n.Publish(spec.Check, "c1", applettest.BothProtocols+`,{"hostPort":9090,"containerPort":80}`); err == nil || spec.AsError(err).Code != spec.CodeCheck {
		t.Errorf("mapping that is not there: %v", err)
	}
	n.NoError(n.NS.SetSysctl("net/ipv4/conf/br0/route_localnet", "0"))
	if err := n.Publish(spec.Check, "c1", applettest.BothProtocols); err == nil || !strings.Contains(err.Error(), "route_localnet") {
		t.Errorf("without route_localnet: %v", err)
	}
	n.NoError(n.Publish(spec.Del, "c1", applettest.BothProtocols))
	if err := n.Publish(spec.Check, "c1", applettest.BothProtocols); err == nil || spec.AsError(err).Code != spec.CodeCheck {
		t.Errorf("after DEL: %v", err)
	}
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("CHECK made %s", got)
	}
}

// CVE-2020-8558: with route_localnet on the bridge, containers cannot reach services of the host on
// 127.0.0.1.
func TestKernelPortmapGuardsLocalnet(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.NS, "host's own")
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	if v, err := n.NS.Sysctl("net/ipv4/conf/br0/route_localnet"); err != nil || v != "1" {
		t.Fatalf("route_localnet of br0: %q, %v", v, err)
	}
	c := kerneltest.Dial(t, n.C2.NS)
	link, err := c.Link("eth0")
	n.NoError(err)
	lo, err := c.Link("lo")
	n.NoError(err)
	n.NoError(n.C2.NS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	n.NoError(c.Do(rtnl.DropAddr(lo.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("127.0.0.1/8")}),
		rtnl.NewRoute(rtnl.Route{Dst: netip.MustParsePrefix("127.0.0.0/8"), GW: netip.MustParseAddr("10.9.0.1"), Link: link.Index})))
	if flow, err := applettest.Connect(n.C2.NS, "tcp", "127.0.0.1:80", 2*time.Second); err == nil {
		t.Errorf("from a container to 127.0.0.1 of the host: %q", n.Say(flow))
	}
}

func TestKernelPortmapGC(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	n.NoError(n.Publish(spec.Add, "c2", `{"hostPort":9090,"containerPort":80}`))
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`, ""))
	if got := n.elements(); strings.Contains(got, "8080") || !strings.Contains(got, "9090") || strings.Count(n.Files(), ".json") != 1 {
		t.Errorf("after GC: %s", got)
	}
	n.Result(n.Do(spec.Status, "portmap", spec.Call{}, "", ""))
}

// The conditions of an ADD apply to its attachment only; in the reference to all.
func TestKernelPortmapConditions(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.C1.NS, "one")
	n.Listen(n.C2.NS, "two")
	add := func(id, conds, port string) {
		t.Helper()
		n.NoError(n.Publish(spec.Add, id, port+`]},"conditionsV4":`+conds+`,"x":{"y":[`))
	}
	add("c1", `["-s","192.0.2.2"]`, `{"hostPort":8080,"containerPort":80}`)
	add("c2", `["ip","saddr","198.51.100.0/24"]`, `{"hostPort":9090,"containerPort":80}`)
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:8080"); got != "one 192.0.2.2" {
		t.Errorf("condition that holds: %q", got)
	}
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:9090"); got != "no answer" {
		t.Errorf("condition that does not hold: %q", got)
	}
}

// DEL of one interface keeps the ports of another one of the container, even with a long container
// ID.
func TestKernelPortmapTwoInterfaces(t *testing.T) {
	n := newBridged(t)
	id := strings.Repeat("x", 200)
	run := func(v spec.Verb, ifName, port string) {
		t.Helper()
		prev := `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`
		keys := `"runtimeConfig":{"portMappings":[{"containerPort":80,"hostPort":` + port + `}]}`
		n.Result(n.Do(v, "portmap", spec.Call{ContainerID: id, IfName: ifName, NetNS: n.C1.Path}, keys, prev))
	}
	run(spec.Add, "eth0", "8080")
	run(spec.Add, "eth1", "9090")
	run(spec.Del, "eth0", "8080")
	run(spec.Check, "eth1", "9090")
	text := nfttest.Ruleset(t, n.NS)
	if strings.Contains(text, "8080") || !strings.Contains(text, "9090") {
		t.Errorf("after DEL of one interface:\n%s", text)
	}
	run(spec.Del, "eth1", "9090")
}

// On a read-only /proc/sys the error says which setting avoids it, and ADD leaves nothing.
func TestKernelPortmapReadOnly(t *testing.T) {
	n := newBridged(t)
	fault.Hook = func(what string) error {
		if strings.Contains(what, "route_localnet") {
			return unix.EROFS
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	err := n.Publish(spec.Add, "c1", applettest.BothProtocols)
	if err == nil || spec.AsError(err).Code != spec.CodeHost || !strings.Contains(err.Error(), `set "snat" to false`) {
		t.Errorf("got %v", err)
	}
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("left %s", got)
	}
	_, err = n.Do(spec.Add, "portmap", n.C1.Call(), `"snat":false,"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`)
	n.NoError(err)
}

// RESTORE ends UDP flows that are older than the rule of their port, whoever has written that. Flows
// to the container go on.
func TestKernelRestoreEndsOldFlows(t *testing.T) {
	for name, rewritten := range map[string]bool{"rules are missing": false, "another program has written the rules": true} {
		t.Run(name, func(t *testing.T) {
			n := newBridged(t)
			n.Listen(n.C1.NS, "one")
			n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
			flow := func() net.Conn {
				c, err := applettest.Connect(n.Outside, "udp", "192.0.2.1:8080", applettest.Timeout)
				n.NoError(err)
				n.Cleanup(func() { c.Close() })
				return c
			}
			led := flow()
			if got := n.Say(led); got != "one 192.0.2.2" {
				t.Fatalf("before: %q", got)
			}
			ports := n.Tool("", "nft", "list", "map", "inet", "cnibox", "dnat4") // hairpin keeps elements of the attachment
			n.Tool("", "nft", "flush", "map", "inet", "cnibox", "dnat4")
			old := flow()
			old.SetDeadline(time.Now().Add(applettest.Timeout))
			old.Write([]byte("?"))
			if _, err := old.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("without the rule: %v", err)
			}
			if rewritten {
				n.Tool(ports, "nft", "-f", "-")
			}
			n.NoError(n.Publish(spec.Restore, "c1", applettest.BothProtocols))
			for name, c := range map[string]net.Conn{"older than the rule": old, "led to the container": led} {
				if got := n.Say(c); got != "one 192.0.2.2" {
					t.Errorf("%s, after RESTORE: %q", name, got)
				}
			}
		})
	}
}
