package bridge_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An address that a new container gets right after DEL of the former one is reachable from the host
// and from a neighbour, although these do not probe: it is announced.
func TestKernelBridgeReusedAddress(t *testing.T) {
	h := applettest.NewHost(t)
	neighbour := h.Container("neighbour")
	h.Must(spec.Add, "bridge", applettest.GatewayConf, neighbour)
	applettest.NoProbes(t, h.NS, "br0")
	applettest.NoProbes(t, neighbour.NS, "eth0")
	want := `"args":{"cni":{"ips":["10.1.0.77","fd00:1::77"]}}`
	conf := strings.TrimSuffix(applettest.GatewayConf, "}") + "," + want + "}"
	for i := range 3 {
		p := h.Container(fmt.Sprintf("owner%d", i))
		h.Listen(p.NS, p.ID)
		h.Must(spec.Add, "bridge", conf, p)
		for _, from := range []applettest.Container{{ID: "host", NS: h.NS}, neighbour} {
			for _, addr := range []string{"10.1.0.77", "fd00:1::77"} {
				if who := h.Who(from.NS, addr, applettest.Timeout); who != p.ID {
					t.Errorf("%s from %s: %q answers, want %q", addr, from.ID, who, p.ID)
				}
			}
		}
		h.Must(spec.Del, "bridge", conf, p)
	}
}

// CVE-2020-10749: accept_ra=0 on the bridge and on the host-side veth.
func TestKernelBridgeAcceptRAOff(t *testing.T) {
	h := applettest.NewHost(t)
	for _, key := range []string{"default", "all"} {
		if err := h.NS.SetSysctl("net/ipv6/conf/"+key+"/accept_ra", "2"); err != nil {
			t.Fatal(err)
		}
	}
	out := h.Must(spec.Add, "bridge", applettest.GatewayConf, h.Container("ctr"))
	for _, l := range kerneltest.Links(t, h.NS) {
		if l.Name == "lo" {
			continue
		}
		value, err := h.NS.Sysctl("net/ipv6/conf/" + l.Name + "/accept_ra")
		if err != nil || value != "0" {
			t.Errorf("accept_ra of %s is %q (%v), want 0\n%s", l.Name, value, err, out)
		}
	}
}

// A port of the bridge has no IPv6 link-local address. With an MTU below 1280 the kernel has no
// IPv6 on a link, which is not an error.
func TestKernelBridgePortWithoutLinkLocal(t *testing.T) {
	for _, mtu := range []int{1500, 1200} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			h := applettest.NewHost(t)
			conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","mtu":%d,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}}`, mtu)
			h.Must(spec.Add, "bridge", conf, h.Container("ctr"))
			all, err := kerneltest.Dial(t, h.NS).AllAddrs()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range kerneltest.Links(t, h.NS) {
				has := slices.ContainsFunc(all[l.Index], func(a rtnl.Addr) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
				if has && l.Kind == "veth" {
					t.Errorf("%s has a link-local address: %v", l.Name, all[l.Index])
				}
			}
		})
	}
}

// The port of a gateway joins the bridge when the container's link is up, so that what a new link sends is not copied to
// each port; and first where a frame that it does not carry, or carries too early, would do harm. Until then the
// host-side veth has no ARP, which would answer for the gateway.
func TestKernelBridgeJoins(t *testing.T) {
	const v4, v6 = `[{"subnet":"10.1.0.0/24"}]`, `[{"subnet":"fd00:1::/64"}]`
	for keys, first := range map[string]bool{
		`"isGateway":true,"ipam":{"ranges":[` + v4:                      false,
		`"isDefaultGateway":true,"mtu":1400,"ipam":{"ranges":[` + v4:    false,
		`"isGateway":true,"hairpinMode":true,"ipam":{"ranges":[` + v4:   false,
		`"isGateway":true,"ipam":{"ranges":[` + v4 + "," + v6:           true,
		`"isGateway":true,"enabledad":true,"ipam":{"ranges":[` + v6:     true,
		`"isGateway":true,"macspoofchk":true,"ipam":{"ranges":[` + v4:   true,
		`"isGateway":true,"portIsolation":true,"ipam":{"ranges":[` + v4: true,
		`"isGateway":false,"ipam":{"ranges":[` + v4:                     true,
	} {
		t.Run(keys, func(t *testing.T) {
			h := applettest.NewHost(t)
			port := func() (of rtnl.Link) {
				for _, l := range kerneltest.Links(t, h.NS) {
					if l.Kind == "veth" {
						of = l
					}
				}
				return of
			}
			var before []bool
			defer func() { fault.Hook = nil }()
			fault.Hook = func(what string) error {
				if contUp.MatchString(what) {
					l := port()
					before = append(before, l.Master != 0)
					if noARP := l.Flags&unix.IFF_NOARP != 0; !l.Up || noARP == first {
						t.Errorf("%s: the host-side veth is %+v", what, l)
					}
				}
				return nil
			}
			h.Must(spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",`+keys+`],"type":"host-local","dataDir":"$DIR"}}`, h.Container("ctr"))
			if !slices.Equal(before, []bool{first}) {
				t.Errorf("on the bridge when the container's link is set up: %v, want %v", before, first)
			}
			if l := port(); l.Master == 0 || l.Flags&unix.IFF_NOARP != 0 {
				t.Errorf("after ADD the host-side veth is %+v", l)
			}
		})
	}
}

var contUp = regexp.MustCompile(`^link set #([2-9]|[0-9]{2,}) up$`) // not that of lo

// On a read-only /proc/sys, sysctls that have the right value, or that the reference sets as best
// effort, are not errors. accept_ra (CVE-2020-10749) causes a warning, disabled forwarding an error
// that says what to do.
func TestKernelBridgeReadOnlySettings(t *testing.T) {
	var stderr strings.Builder
	h := applettest.NewHost(t)
	h.Stderr = &stderr
	readOnly := func(what string) error {
		if strings.HasPrefix(what, "sysctl ") {
			return unix.EROFS
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	p, q := h.Container("one"), h.Container("two")
	v4 := strings.Replace(applettest.GatewayConf, `,[{"subnet":"fd00:1::/64"}]`, "", 1)
	fault.Hook = readOnly
	h.Refuse(spec.CodeHost, "set net/ipv4/ip_forward to 1 on the host", spec.Add, "bridge", v4, p)
	h.Must(spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"l2","type":"bridge","bridge":"br1"}`, p, "CNI_IFNAME=net1")
	for _, link := range []string{"br1", "veth"} {
		name := kerneltest.Link(t, kerneltest.Dial(t, h.NS), link).Name
		if want := "CVE-2020-10749): set net/ipv6/conf/default/accept_ra to 0 there: sysctl net/ipv6/conf/" + name; !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr has %q, want %q", stderr.String(), want)
		}
	}
	fault.Hook = nil
	h.Must(spec.Add, "bridge", v4, p)
	fault.Hook = readOnly
	h.Must(spec.Check, "bridge", applettest.Prev(v4, h.Must(spec.Add, "bridge", v4, q)), q)
}

// DEL leaves a link with the right name if another network owns it.
func TestKernelBridgeDelOfOtherNetwork(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	h.Must(spec.Add, "bridge", applettest.GatewayConf, p)
	other := strings.Replace(applettest.GatewayConf, `"demo"`, `"other"`, 1)
	h.Must(spec.Del, "bridge", other, p)
	if got := h.Must(spec.Get, "bridge", applettest.GatewayConf, p); !strings.Contains(got, "10.1.0.2/24") {
		t.Errorf("DEL of another network took the link away: %s", got)
	}
}

// CHECK succeeds right after ADD, and reports whatever is missing.
func TestKernelBridgeCheck(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	conf := strings.Replace(applettest.GatewayConf, `"ipMasq":true`, `"ipMasq":true,"macspoofchk":true,"hairpinMode":true`, 1)
	host, cont := kerneltest.Dial(t, h.NS), kerneltest.Dial(t, p.NS)
	port := func() *rtnl.Link { return kerneltest.Link(t, host, "veth") }
	eth0 := func() *rtnl.Link { return kerneltest.Link(t, cont, "eth0") }
	for name, tt := range map[string]struct {
		harm func() error
		want string
	}{
		"nothing":        {func() error { return nil }, ""},
		"port":           {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Master: new(uint32(0))}) }, "is not a port of bridge"},
		"hairpin":        {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Hairpin: new(false)}) }, "hairpin mode is false"},
		"host-side veth": {func() error { return host.SetLink(port().Index, rtnl.LinkChange{Up: new(false)}) }, "is down"},
		"link":           {func() error { return cont.DelLink("eth0") }, "no interface eth0 in "},
		"address": {func() error {
			return cont.Do(rtnl.DropAddr(eth0().Index, kerneltest.Addr(t, cont, eth0().Index, "10.1.")))
		}, "does not have address 10.1."},
		"route": {func() error {
			return cont.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: eth0().Index}))
		}, "route 0.0.0.0/0"},
		"MAC address": {func() error {
			return cont.SetLink(eth0().Index, rtnl.LinkChange{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
		}, "MAC address"},
		"gateway": {func() error {
			br := kerneltest.Link(t, host, "br0")
			return host.Do(rtnl.DropAddr(br.Index, kerneltest.Addr(t, host, br.Index, "10.1.")))
		}, "gateway address"},
		"forwarding": {func() error { return h.NS.SetSysctl("net/ipv4/ip_forward", "0") }, "is off"},
		"rules":      {func() error { return h.Release(p, nft.KindMasquerade) }, "masquerading"},
		"MAC guard":  {func() error { return h.Release(p, nft.KindMACGuard) }, "MAC guard"},
		"lease":      {func() error { return os.RemoveAll(filepath.Join(h.Dir, "demo")) }, "host-local"},
	} {
		t.Run(name, func(t *testing.T) {
			result := h.Must(spec.Add, "bridge", conf, p)
			defer h.Must(spec.Del, "bridge", conf, p)
			h.Must(spec.Check, "bridge", applettest.Prev(conf, result), p)
			if err := tt.harm(); err != nil {
				t.Fatal(err)
			}
			code, out := h.Call(spec.Check, "bridge", applettest.Prev(conf, result), p)
			if tt.want == "" != (code == 0) || !strings.Contains(out, tt.want) {
				t.Errorf("CHECK answers %d %s, want %q", code, out, tt.want)
			}
		})
	}
	// CHECK of a layer 2 bridge succeeds.
	l2 := `{"cniVersion":"0.4.0","name":"l2","type":"bridge","bridge":"br1"}`
	h.Must(spec.Check, "bridge", applettest.Prev(l2, h.Must(spec.Add, "bridge", l2, p)), p)
}

// CHECK accepts addresses that a later plugin added for another interface, and the MAC address of a
// third-party bridge, which changes with its ports.
func TestKernelBridgeCheckWithLaterInterface(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	host := kerneltest.Dial(t, h.NS)
	br, err := host.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true})
	if err == nil {
		err = host.AddAddr(br.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.1/24")})
	}
	if err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(applettest.GatewayConf, `,[{"subnet":"fd00:1::/64"}]`, "", 1)
	result := h.Must(spec.Add, "bridge", conf, p)
	if err := host.AddLink(rtnl.LinkSpec{Name: "low", Master: br.Index, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Peer: &rtnl.LinkSpec{Name: "low1"}}); err != nil {
		t.Fatal(err)
	}
	h.Must(spec.Check, "bridge", applettest.Prev(conf, applettest.WithOtherInterface(result)), p)
}

// Concurrent ADDs on a host without the bridge succeed.
func TestKernelBridgeParallel(t *testing.T) {
	h := applettest.NewHost(t)
	var wg sync.WaitGroup
	for i := range 16 {
		p := h.Container(fmt.Sprintf("ctr%d", i))
		wg.Go(func() {
			if code, out := h.Call(spec.Add, "bridge", applettest.GatewayConf, p); code != 0 {
				t.Errorf("ADD: %s", out)
			}
		})
	}
	wg.Wait()
	if got := len(h.Leases()); got != 32 {
		t.Errorf("%d leases of 16 dual stack containers", got)
	}
}

// GC deletes the links and rules of stale attachments of the network, and nothing else.
func TestKernelBridgeGC(t *testing.T) {
	h := applettest.NewHost(t)
	stays, goes, other := h.Container("stays"), h.Container("goes"), h.Container("other")
	h.Must(spec.Add, "bridge", applettest.GatewayConf, goes)
	h.Must(spec.Del, "bridge", applettest.GatewayConf, goes)
	h.Must(spec.Add, "bridge", applettest.GatewayConf, stays)
	second := strings.NewReplacer(`"demo"`, `"second"`, "10.1.", "10.2.", "fd00:1:", "fd00:2:", "br0", "br1").Replace(applettest.GatewayConf)
	h.Must(spec.Add, "bridge", second, other)
	before := h.Snapshot(goes)
	h.Must(spec.Add, "bridge", applettest.GatewayConf, goes)
	valid := strings.TrimSuffix(applettest.GatewayConf, "}") + `,"cni.dev/valid-attachments":[{"containerID":"stays","ifname":"eth0"}]}`
	h.Must(spec.GC, "bridge", valid, applettest.Container{})
	if after := h.Snapshot(goes); after != before {
		t.Errorf("GC made a difference:\n%s", kerneltest.Diff(before, after))
	}
}

// Two networks with the same subnet, each with its own bridge, masquerade containers with the same
// address: CHECK of both succeeds, and DEL of the first keeps the rules of the second. After DEL of the second, CHECK of
// the first says what is missing, and RESTORE adds it.
func TestKernelBridgeSameSubnet(t *testing.T) {
	h := applettest.NewHost(t)
	second := strings.NewReplacer(`"demo"`, `"second"`, "br0", "br1").Replace(applettest.GatewayConf)
	one, two := h.Container("one"), h.Container("two")
	before := h.Snapshot(two)
	result := h.Must(spec.Add, "bridge", applettest.GatewayConf, one)
	result2 := h.Must(spec.Add, "bridge", second, two)
	h.Must(spec.Check, "bridge", applettest.Prev(applettest.GatewayConf, result), one)
	h.Must(spec.Check, "bridge", applettest.Prev(second, result2), two)
	h.Must(spec.Del, "bridge", second, two)
	if code, out := h.Call(spec.Check, "bridge", applettest.Prev(applettest.GatewayConf, result), one); code == 0 || !strings.Contains(out, "missing: masquerade 10.1.0.2, masquerade fd00:1::2") {
		t.Errorf("after DEL of the second, CHECK of the first: %s", out)
	}
	h.Restore("bridge", applettest.Prev(applettest.GatewayConf, result), one)
	h.Must(spec.Check, "bridge", applettest.Prev(applettest.GatewayConf, result), one)
	third := strings.ReplaceAll(second, `"second"`, `"third"`)
	result3 := h.Must(spec.Add, "bridge", third, two)
	h.Must(spec.Del, "bridge", applettest.Prev(applettest.GatewayConf, result), one)
	h.Must(spec.Check, "bridge", applettest.Prev(third, result3), two)
	h.Must(spec.Del, "bridge", applettest.Prev(third, result3), two)
	if after := h.Snapshot(two); strings.Contains(after, "out-") {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// CHECK and DEL find a renamed host-side veth. DEL does not release the address while the interface
// exists.
func TestKernelBridgeHostVethRenamed(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	h.Must(spec.Add, "bridge", applettest.GatewayConf, h.Container("other"))
	before := h.Snapshot(p)
	result := h.Must(spec.Add, "bridge", applettest.GatewayConf, p)
	host := kerneltest.Dial(t, h.NS)
	own, err := host.VethPeer(kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0"), p.NS)
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range []rtnl.LinkChange{{Up: new(false)}, {Name: new("hostend")}, {Up: new(true)}} {
		if err := host.SetLink(own.Index, ch); err != nil {
			t.Fatal(err)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(applettest.GatewayConf, result), p)
	h.Restore("bridge", applettest.Prev(applettest.GatewayConf, result), p) // adds elements for the new name
	h.Must(spec.Del, "bridge", applettest.Prev(applettest.GatewayConf, result), p)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}
