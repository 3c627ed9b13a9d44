//go:build !no_bridge

package applets_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	rollbackConfs["bridge"] = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
		"macspoofchk":true,"hairpinMode":true,"portIsolation":true,"mtu":1400,
		"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
			"routes":[{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}}`
	rollbackConfs["bridge-l2"] = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","promiscMode":true}`
}

const gatewayConf = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
	"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}}`

// An address handed to a new container right after its old owner left is
// reachable from the host and from a neighbour, which are told of it: they ask nobody
// again.
func TestKernelBridgeReusedAddress(t *testing.T) {
	n := newNode(t)
	neighbour := n.pod("neighbour")
	n.must(spec.Add, "bridge", gatewayConf, neighbour)
	trusting(t, n.host, "br0")
	trusting(t, neighbour.ns, "eth0")
	want := `"args":{"cni":{"ips":["10.1.0.77","fd00:1::77"]}}`
	conf := strings.TrimSuffix(gatewayConf, "}") + "," + want + "}"
	for i := range 3 {
		p := n.pod(fmt.Sprintf("owner%d", i))
		n.echo(p)
		n.must(spec.Add, "bridge", conf, p)
		for _, from := range []pod{{id: "host", ns: n.host}, neighbour} {
			for _, addr := range []string{"10.1.0.77", "fd00:1::77"} {
				if who := ask(t, from.ns, addr, patience); who != p.id {
					t.Errorf("%s from %s: %q answers, want %q", addr, from.id, who, p.id)
				}
			}
		}
		n.must(spec.Del, "bridge", conf, p)
	}
}

// CVE-2020-10749: neither the bridge nor the host end takes routes from
// router advertisements that a container sends.
func TestKernelBridgeCVE202010749(t *testing.T) {
	n := newNode(t)
	for _, key := range []string{"default", "all"} {
		if err := n.host.SetSysctl("net/ipv6/conf/"+key+"/accept_ra", "2"); err != nil {
			t.Fatal(err)
		}
	}
	out := n.must(spec.Add, "bridge", gatewayConf, n.pod("ctr"))
	for _, l := range links(t, n.host) {
		if l.Name == "lo" {
			continue
		}
		value, err := n.host.Sysctl("net/ipv6/conf/" + l.Name + "/accept_ra")
		if err != nil || value != "0" {
			t.Errorf("accept_ra of %s is %q (%v), want 0\n%s", l.Name, value, err, out)
		}
	}
}

// Where /proc/sys is read-only, settings that have their values do no harm, nor do those
// that the reference tries alone. That of CVE-2020-10749 is told; forwarding that is off
// is an error that says what to do.
func TestKernelBridgeReadOnlySettings(t *testing.T) {
	var told strings.Builder
	n := newNode(t)
	n.warn = &told
	readOnly := func(what string) error {
		if strings.HasPrefix(what, "sysctl ") {
			return unix.EROFS
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	p, q := n.pod("one"), n.pod("two")
	v4 := strings.Replace(gatewayConf, `,[{"subnet":"fd00:1::/64"}]`, "", 1)
	fault.Hook = readOnly
	n.refuse(spec.CodeHost, "set net/ipv4/ip_forward to 1 on the host", spec.Add, "bridge", v4, p)
	n.must(spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"l2","type":"bridge","bridge":"br1"}`, p, "CNI_IFNAME=net1")
	for _, link := range []string{"br1", "veth"} {
		name := linkOf(t, kerneltest.Dial(t, n.host), link).Name
		if want := "CVE-2020-10749): set net/ipv6/conf/default/accept_ra to 0 there: sysctl net/ipv6/conf/" + name; !strings.Contains(told.String(), want) {
			t.Errorf("stderr has %q, want %q", told.String(), want)
		}
	}
	fault.Hook = nil
	n.must(spec.Add, "bridge", v4, p)
	fault.Hook = readOnly
	n.must(spec.Check, "bridge", prev(v4, n.must(spec.Add, "bridge", v4, q)), q)
}

// DEL succeeds and cleans all with anything missing: namespace empty, gone, or
// a stale regular file; prevResult absent; a second time.
func TestKernelBridgeDel(t *testing.T) {
	n := newNode(t)
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(gatewayConf, `"ipMasq":true`, `"ipMasq":true,"macspoofchk":true`, 1)
	n.must(spec.Del, "bridge", conf, n.pod("never")) // makes sure of nothing, and leaves nothing
	n.must(spec.Add, "bridge", conf, n.pod("stays"))
	for name, path := range map[string]string{"empty": "", "gone": "/nonexistent/netns", "stale file": stale, "live": "live"} {
		t.Run(name, func(t *testing.T) {
			p := n.pod("ctr")
			before := n.state(p)
			n.must(spec.Add, "bridge", conf, p)
			live := p.path
			if path != "live" {
				p.path = path
			}
			n.must(spec.Del, "bridge", conf, p)
			n.must(spec.Del, "bridge", conf, p)
			p.path = live
			if after := n.state(p); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// A link of the right name that belongs to somebody else stays.
func TestKernelBridgeDelForeignLink(t *testing.T) {
	n := newNode(t)
	p := n.pod("ctr")
	n.must(spec.Add, "bridge", gatewayConf, p)
	other := strings.Replace(gatewayConf, `"demo"`, `"other"`, 1)
	n.must(spec.Del, "bridge", other, p)
	if got := n.must(spec.Get, "bridge", gatewayConf, p); !strings.Contains(got, "10.1.0.2/24") {
		t.Errorf("DEL of another network took the link away: %s", got)
	}
}

// CHECK right after ADD passes, and each thing that is taken away is told.
func TestKernelBridgeCheck(t *testing.T) {
	n := newNode(t)
	p := n.pod("ctr")
	conf := strings.Replace(gatewayConf, `"ipMasq":true`, `"ipMasq":true,"macspoofchk":true,"hairpinMode":true`, 1)
	host, cont := kerneltest.Dial(t, n.host), kerneltest.Dial(t, p.ns)
	port := func() *rtnl.Link { return linkOf(t, host, "veth") }
	eth0 := func() *rtnl.Link { return linkOf(t, cont, "eth0") }
	for name, tt := range map[string]struct {
		harm func() error
		want string
	}{
		"nothing":  {func() error { return nil }, ""},
		"port":     {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Master: new(uint32(0))}) }, "is not a port of bridge"},
		"hairpin":  {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Hairpin: new(false)}) }, "hairpin mode is false"},
		"host end": {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Up: new(false)}) }, "is down"},
		"link":     {func() error { return cont.DelLink("eth0") }, "container interface"},
		"address":  {func() error { return cont.Do(rtnl.DropAddr(eth0().Index, addrsOf(t, cont, eth0().Index, "10.1."))) }, "does not have address 10.1."},
		"route":    {func() error { return cont.Do(rtnl.DropRoute(rtnl.Route{Dst: prefix("0.0.0.0/0"), Link: eth0().Index})) }, "route 0.0.0.0/0"},
		"MAC address": {func() error {
			return cont.SetLink(eth0().Index, rtnl.LinkChange{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
		}, "has MAC address"},
		"gateway": {func() error {
			br := linkOf(t, host, "br0")
			return host.Do(rtnl.DropAddr(br.Index, addrsOf(t, host, br.Index, "10.1.")))
		}, "does not have the gateway address"},
		"forwarding": {func() error { return n.host.SetSysctl("net/ipv4/ip_forward", "0") }, "forwarding is off"},
		"rules":      {func() error { return releaseAll(t, n, p, nft.KindMasquerade) }, "masquerading"},
		"MAC guard":  {func() error { return releaseAll(t, n, p, nft.KindMACGuard) }, "MAC guard"},
		"lease":      {func() error { return os.RemoveAll(filepath.Join(n.dir, "demo")) }, "Failed to find address"},
	} {
		t.Run(name, func(t *testing.T) {
			result := n.must(spec.Add, "bridge", conf, p)
			defer n.must(spec.Del, "bridge", conf, p)
			n.must(spec.Check, "bridge", prev(conf, result), p)
			if err := tt.harm(); err != nil {
				t.Fatal(err)
			}
			code, out := n.call(t.Context(), spec.Check, "bridge", prev(conf, result), p)
			if tt.want == "" != (code == 0) || !strings.Contains(out, tt.want) {
				t.Errorf("CHECK answers %d %s, want %q", code, out, tt.want)
			}
		})
	}
	// [S] layer 2 only passes, a /32 and the loss of nothing too
	l2 := `{"cniVersion":"0.4.0","name":"l2","type":"bridge","bridge":"br1"}`
	n.must(spec.Check, "bridge", prev(l2, n.must(spec.Add, "bridge", l2, p)), p)
}

// CHECK passes when a later plugin has entered addresses of another interface, and when
// the address of a bridge that others made follows a new port.
func TestKernelBridgeCheckAfterOthers(t *testing.T) {
	n := newNode(t)
	p := n.pod("ctr")
	host := kerneltest.Dial(t, n.host)
	br, err := host.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true})
	if err == nil {
		err = host.AddAddr(br.Index, rtnl.Addr{Prefix: prefix("10.1.0.1/24")})
	}
	if err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(gatewayConf, `,[{"subnet":"fd00:1::/64"}]`, "", 1)
	result := n.must(spec.Add, "bridge", conf, p)
	if err := host.AddLink(rtnl.LinkSpec{Name: "low", Master: br.Index, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Peer: &rtnl.LinkSpec{Name: "low1"}}); err != nil {
		t.Fatal(err)
	}
	n.must(spec.Check, "bridge", prev(conf, withStranger(result)), p)
}

// Several ADDs at once on a host without the bridge all succeed.
func TestKernelBridgeParallel(t *testing.T) {
	n := newNode(t)
	var wg sync.WaitGroup
	for i := range 16 {
		p := n.pod(fmt.Sprintf("ctr%d", i))
		wg.Go(func() {
			if code, out := n.call(t.Context(), spec.Add, "bridge", gatewayConf, p); code != 0 {
				t.Errorf("ADD: %s", out)
			}
		})
	}
	wg.Wait()
	if got := len(n.leases()); got != 32 {
		t.Errorf("%d leases of 16 dual stack containers", got)
	}
}

// GC takes away what belongs to attachments of the network that are gone, and
// nothing else.
func TestKernelBridgeGC(t *testing.T) {
	n := newNode(t)
	stays, goes, other := n.pod("stays"), n.pod("goes"), n.pod("other")
	n.must(spec.Add, "bridge", gatewayConf, goes)
	n.must(spec.Del, "bridge", gatewayConf, goes)
	n.must(spec.Add, "bridge", gatewayConf, stays)
	second := strings.NewReplacer(`"demo"`, `"second"`, "10.1.", "10.2.", "fd00:1:", "fd00:2:", "br0", "br1").Replace(gatewayConf)
	n.must(spec.Add, "bridge", second, other)
	before := n.state(goes)
	n.must(spec.Add, "bridge", gatewayConf, goes)
	valid := strings.TrimSuffix(gatewayConf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"stays","ifname":"eth0"}]}`
	n.must(spec.GC, "bridge", valid, pod{})
	if after := n.state(goes); after != before {
		t.Errorf("GC made a difference:\n%s", kerneltest.Diff(before, after))
	}
}

// Two networks of the same subnet, on a bridge each, masquerade their containers though
// these have one address: CHECK of both passes, and the one that stays keeps it.
func TestKernelBridgeSameSubnet(t *testing.T) {
	n := newNode(t)
	second := strings.NewReplacer(`"demo"`, `"second"`, "br0", "br1").Replace(gatewayConf)
	one, two := n.pod("one"), n.pod("two")
	before := n.state(two)
	result := n.must(spec.Add, "bridge", gatewayConf, one)
	for range 2 {
		result2 := n.must(spec.Add, "bridge", second, two)
		n.must(spec.Check, "bridge", prev(gatewayConf, result), one)
		n.must(spec.Check, "bridge", prev(second, result2), two)
		n.must(spec.Del, "bridge", second, two)
		n.must(spec.Check, "bridge", prev(gatewayConf, result), one)
	}
	result2 := n.must(spec.Add, "bridge", second, two)
	n.must(spec.Del, "bridge", gatewayConf, one)
	n.must(spec.Check, "bridge", prev(second, result2), two)
	n.must(spec.Del, "bridge", second, two)
	if after := n.state(two); strings.Contains(after, "out-") {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// A host end that somebody has renamed is the attachment's all the same: CHECK finds it,
// and DEL does not give the address of a live interface away.
func TestKernelBridgeHostEndRenamed(t *testing.T) {
	n := newNode(t)
	p := n.pod("ctr")
	n.must(spec.Add, "bridge", gatewayConf, n.pod("other"))
	before := n.state(p)
	result := n.must(spec.Add, "bridge", gatewayConf, p)
	host := kerneltest.Dial(t, n.host)
	own, err := host.VethPeer(linkOf(t, kerneltest.Dial(t, p.ns), "eth0"), p.ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range []rtnl.LinkChange{{Up: new(false)}, {Name: new("hostend")}, {Up: new(true)}} {
		if err := host.SetLink(own.Index, ch); err != nil {
			t.Fatal(err)
		}
	}
	n.must(spec.Check, "bridge", prev(gatewayConf, result), p)
	n.must(spec.Del, "bridge", gatewayConf, p)
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}
