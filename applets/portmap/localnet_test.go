package portmap_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

const anyPort = `{"hostPort":8080,"containerPort":80}`

// localnet returns route_localnet of a link of the host.
func (n *bridged) localnet(link string) string {
	n.Helper()
	v, err := n.NS.Sysctl("net/ipv4/conf/" + link + "/route_localnet")
	n.NoError(err)
	return v
}

// exposed reports whether a namespace can reach a service of the host on 127.0.0.1.
func (n *bridged) exposed(ns *netns.NS, within time.Duration) bool {
	c, err := applettest.Connect(ns, "tcp", "127.0.0.1:80", within)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// After the last mapping route_localnet remains set, and so does the rule that drops packets of
// neighbours to 127.0.0.1. No file remains.
func TestKernelPortmapLocalnetStays(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.NS, "host's own")
	n.AttackLocal(n.C2.NS, "10.9.0.1")
	n.NoError(n.NS.SetSysctl("net/ipv4/conf/br0/route_localnet", "1"))
	if !n.exposed(n.C2.NS, applettest.Timeout) {
		t.Fatal("the attack does not work even without protection")
	}
	n.NoError(n.NS.SetSysctl("net/ipv4/conf/br0/route_localnet", "0"))
	n.NoError(n.Publish(spec.Add, "c1", anyPort))
	if n.exposed(n.C2.NS, time.Second) {
		t.Error("exposed with a published port")
	}
	n.NoError(n.Publish(spec.Del, "c1", anyPort))
	if got := n.localnet("br0"); got != "1" || n.Files() != "" {
		t.Errorf("after DEL: %s, files: %s", got, n.Files())
	}
	if n.exposed(n.C2.NS, time.Second) {
		t.Error("exposed after DEL")
	}
}

// A failed ADD keeps tables that it has not created: their guard protects 127.0.0.1 while
// route_localnet is set on any link.
func TestKernelUndoKeepsForeignTables(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.NS, "host's own")
	n.AttackLocal(n.Outside, "192.0.2.1")
	n.NoError(n.Publish(spec.Add, "c1", anyPort))
	n.NoError(n.Publish(spec.Del, "c1", anyPort))
	n.NoError(n.NS.SetSysctl("net/ipv4/conf/out0/route_localnet", "1"))
	before := nfttest.Ruleset(t, n.NS)
	h := &applettest.Host{T: t, NS: n.NS, Dir: t.TempDir()}
	for applet, conf := range map[string]string{
		"bridge": `{"cniVersion":"1.1.0","name":"net2","type":"bridge","bridge":"br7","isGateway":true,"ipMasq":true,"macspoofchk":true,
			"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.7.0.0/24"}}`,
		"ptp": `{"cniVersion":"1.1.0","name":"net2","type":"ptp","ipMasq":true,
			"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.7.0.0/24"}}`,
	} {
		n.NoError(n.NS.SetSysctl("net/ipv4/ip_forward", "0"))
		failed := false
		fault.Hook = func(what string) error {
			// The first change after that of the ruleset, so that undo has to revert the ruleset
			if strings.Contains(what, "forward") {
				failed = true
				return errors.New("injected")
			}
			return nil
		}
		p := h.Container("c3")
		code, out := h.Call(spec.Add, applet, conf, p)
		fault.Hook = nil
		if code == 0 || !failed {
			t.Fatalf("%s: ADD was to fail: %s", applet, out)
		}
		if nfttest.Ruleset(t, n.NS) != before {
			t.Errorf("%s: a failed ADD changed the rule set", applet)
		}
		if n.exposed(n.Outside, time.Second) {
			t.Errorf("%s: exposed after a failed ADD", applet)
		}
	}
}

// Whatever prevResult has, route_localnet is set on the host-side veth of the container, or on the
// bridge whose port that is, and on no other link.
func TestKernelPortmapWrongPrevResult(t *testing.T) {
	n := newBridged(t)
	host := kerneltest.Dial(t, n.NS)
	n.NoError(host.AddLink(rtnl.LinkSpec{Name: "br1", Kind: rtnl.Bridge{}, Up: true}))
	kerneltest.Address(t, n.NS, "br1", "10.8.0.1/24")
	for name, prev := range map[string]string{
		"address on the LAN": `"interfaces":[{"name":"out0"},{"name":"eth0","sandbox":%q}],"ips":[{"address":"192.0.2.2/24","interface":1}]`,
		"link of the host":   `"interfaces":[{"name":"out0","sandbox":""}],"ips":[{"address":"192.0.2.2/24","interface":0},{"address":"192.0.2.3/24"}],"x":%q`,
		"another bridge":     `"interfaces":[{"name":"br1"},{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.8.0.7/24","interface":1}]`,
		"behind a gateway":   `"interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"203.0.113.9/24","interface":0}]`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.Do(spec.Add, "portmap", n.C1.Call(), `"runtimeConfig":{"portMappings":[`+anyPort+`]}`,
				`{"cniVersion":"1.1.0",`+fmt.Sprintf(prev, n.C1.Path)+`}`)
			n.NoError(err)
			for _, link := range []string{"out0", "br1", "br0", "lo"} {
				if got := n.localnet(link); got != "0" {
					t.Errorf("route_localnet of %s: %s", link, got)
				}
			}
			n.Result(n.Do(spec.Del, "portmap", n.C1.Call(), "", ""))
		})
	}
}

// route_localnet is set on the link to the container: the host-side veth, or the host's interface
// in a VLAN of the bridge.
func TestKernelPortmapLocalnetLinks(t *testing.T) {
	n := newBridged(t)
	host := kerneltest.Dial(t, n.NS)
	c := kerneltest.NS(t)
	path := kerneltest.NSPath(t, c)
	n.NoError(host.AddLink(rtnl.LinkSpec{Name: "ptp0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: c}}))
	kerneltest.Address(t, n.NS, "ptp0", "10.6.0.1/24")
	n.Configure(c, "10.6.0.2/24", "fd00:6::2/64", "10.6.0.1", "fe80::1")
	br := kerneltest.Link(t, host, "br0").Index
	n.NoError(host.AddLink(rtnl.LinkSpec{Name: "gw5p", Master: br, Up: true, Peer: &rtnl.LinkSpec{Name: "gw5"}}))
	kerneltest.Address(t, n.NS, "gw5", "10.5.0.1/24")
	add := func(netns, addr string) {
		t.Helper()
		_, err := n.Do(spec.Add, "portmap", spec.Call{ContainerID: "c9", IfName: "eth0", NetNS: netns},
			`"runtimeConfig":{"portMappings":[`+anyPort+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"`+addr+`"}]}`)
		n.NoError(err)
	}
	add(path, "10.6.0.2/24")
	n.Listen(c, "pair")
	if got := n.Ask(n.NS, "tcp", "127.0.0.1:8080"); got != "pair 10.6.0.1" {
		t.Errorf("by 127.0.0.1: %q", got)
	}
	add(n.C1.Path, "10.5.0.2/24") // the same attachment through another link
	if n.localnet("ptp0") != "1" || n.localnet("gw5") != "1" {
		t.Errorf("ptp0 %s, gw5 %s", n.localnet("ptp0"), n.localnet("gw5"))
	}
	n.NoError(host.DelLink("gw5"))
	n.Result(n.Do(spec.Del, "portmap", spec.Call{ContainerID: "c9", IfName: "eth0"}, "", "")) // gw5 is deleted
	if n.Files() != "" {
		t.Errorf("files left: %s", n.Files())
	}
}
