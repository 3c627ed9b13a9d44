package bridge_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A configuration that cannot work is refused with code 7 and changes nothing.
func TestKernelBridgeInvalidConf(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	before := h.Snapshot(p)
	for name, tt := range map[string]struct{ keys, want string }{
		"hairpin and promisc":  {`"hairpinMode":true,"promiscMode":true`, "cannot set hairpin mode and promiscuous mode"},
		"no interface, IPAM":   {`"disableContainerInterface":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}`, "use IPAM"},
		"backend":              {`"ipMasqBackend":"ipfw"`, "unknown ipmasq backend"},
		"mtu":                  {`"mtu":67`, "is not within 68 to 65535"},
		"mtu of another type":  {`"mtu":"1500"`, "mtu"},
		"bridge name":          {`"bridge":"../x"`, "interface name"},
		"bridge name too long": {`"bridge":"sixteen-bytes-xx"`, "too long"},
		"vlan":                 {`"vlan":4095`, "VLAN ID"},
		"vlan below":           {`"vlan":-1`, "VLAN ID"},
		"trunk id":             {`"vlanTrunk":[{"id":4095}]`, "incorrect trunk id"},
		"trunk id 0":           {`"vlanTrunk":[{"id":0}]`, "incorrect trunk id"},
		"trunk minID":          {`"vlanTrunk":[{"minID":0,"maxID":5}]`, "incorrect trunk minID"},
		"trunk maxID":          {`"vlanTrunk":[{"minID":1,"maxID":4095}]`, "incorrect trunk maxID"},
		"trunk order":          {`"vlanTrunk":[{"minID":9,"maxID":5}]`, "minID is greater than maxID"},
		"trunk without minID":  {`"vlanTrunk":[{"maxID":5}]`, "minID is missing"},
		"trunk without maxID":  {`"vlanTrunk":[{"minID":5}]`, "maxID is missing"},
		"mac":                  {`"args":{"cni":{"mac":"02:00:00:00:00"}}`, "mac"},
		"multicast mac":        {`"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`, "mac"},
		"ipam path":            {`"ipam":{"type":"../host-local"}`, "../host-local"},
		"ipam of another type": {`"ipam":"host-local"`, "ipam"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := h.Call(spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"demo","type":"bridge",`+tt.keys+`}`, p)
			if code != spec.CodeConfig || !strings.Contains(strings.ToLower(out), strings.ToLower(tt.want)) {
				t.Errorf("got %d %s, want code 7 with %q", code, out, tt.want)
			}
		})
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// The bridge gets the gateway address; the reference fails in each of these cases.
func TestKernelBridgeGateways(t *testing.T) {
	for name, tt := range map[string]struct{ keys, want, gone string }{
		"two IPv4 range sets need no forceAddress": {
			`"isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]}`,
			"br0 10.1.0.1/24, br0 10.2.0.1/24", ""},
		"isDefaultGateway beside a default route of IPAM": {
			`"isDefaultGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}`,
			"br0 10.1.0.1/24", ""},
		"a gateway of its own": {
			`"isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","gateway":"10.1.0.254"}`,
			"br0 10.1.0.254/24", ""},
		"a route on the link although there is a gateway": {
			`"isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"10.9.0.0/16","scope":253}]}`,
			"br0 10.1.0.1/24", ""},
		"forceAddress replaces": {
			`"isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`,
			"br0 10.1.0.1/24", "192.0.2.1/24"},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			host := kerneltest.Dial(t, h.NS)
			if tt.gone != "" {
				br, err := host.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}})
				if err != nil {
					t.Fatal(err)
				}
				if err := host.AddAddr(br.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(tt.gone)}); err != nil {
					t.Fatal(err)
				}
			}
			conf := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",` + tt.keys + `}`
			p := h.Container("ctr")
			h.Must(spec.Check, "bridge", applettest.Prev(conf, h.Must(spec.Add, "bridge", conf, p)), p)
			snapshot := kerneltest.Snapshot(t, h.NS)
			for want := range strings.SplitSeq(tt.want, ", ") {
				name, addr, _ := strings.Cut(want, " ")
				if !strings.Contains(snapshot, addr) {
					t.Errorf("%s is missing on %s:\n%s", addr, name, snapshot)
				}
			}
			if tt.gone != "" && strings.Contains(snapshot, tt.gone) {
				t.Errorf("%s is still there:\n%s", tt.gone, snapshot)
			}
		})
	}
}

// A conflicting address of the bridge is an error that changes nothing, and so is a link of its
// name that is not a bridge.
func TestKernelBridgeConflicts(t *testing.T) {
	h := applettest.NewHost(t)
	host := kerneltest.Dial(t, h.NS)
	if err := host.Do(
		rtnl.NewLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Up: true}),
		rtnl.NewLink(rtnl.LinkSpec{Name: "nobr0", Peer: &rtnl.LinkSpec{Name: "nobr1"}})); err != nil {
		t.Fatal(err)
	}
	// An uplink, whose segment may use the subnet
	if err := host.AddLink(rtnl.LinkSpec{Name: "up0", Master: kerneltest.Link(t, host, "br0").Index, Peer: &rtnl.LinkSpec{Name: "up1"}}); err != nil {
		t.Fatal(err)
	}
	if err := host.AddAddr(kerneltest.Link(t, host, "br0").Index, rtnl.Addr{Prefix: netip.MustParsePrefix("192.0.2.1/24")}); err != nil {
		t.Fatal(err)
	}
	if err := h.NS.SetSysctl("net/ipv6/conf/br0/accept_ra", "0"); err != nil { // as ADD sets it, for equal snapshots
		t.Fatal(err)
	}
	p := h.Container("ctr")
	for conf, want := range map[string]string{
		strings.Replace(applettest.GatewayConf, `"br0"`, `"nobr0"`, 1): "a bridge",
		applettest.GatewayConf: "br0 has 192.0.2.1/24, and up0 is a port of br0; DEL what is in the old subnet",
	} {
		before := h.Snapshot(p)
		code, out := h.Call(spec.Add, "bridge", conf, p)
		if code != spec.CodeConfig || !strings.Contains(out, want) {
			t.Errorf("got %d %s, want %q", code, out, want)
		}
		if after := h.Snapshot(p); after != before {
			t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
		}
	}
}

// If nothing uses the former subnet of a network, ADD replaces its gateway address, with one
// warning. A lease or a port of another network's container prevents that, attachments in the new
// subnet do not. A failed ADD restores the former address.
func TestKernelBridgeStaleGateway(t *testing.T) {
	conf := func(name, subnet string) string {
		return `{"cniVersion":"1.1.0","name":"` + name + `","type":"bridge","bridge":"br0","isGateway":true,
			"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"` + subnet + `"}}`
	}
	before, now := conf("demo", "10.1.0.0/24"), conf("demo", "10.2.0.0/24")
	const phrase = `\"br0\" already has an IP address different from 10.2.0.1/24`
	h := applettest.NewHost(t)
	var warned strings.Builder
	h.Stderr = &warned
	one, two, three := h.Container("one"), h.Container("two"), h.Container("three")
	h.Must(spec.Add, "bridge", before, one)
	h.Refuse(spec.CodeConfig, phrase, spec.Add, "bridge", now, two)
	h.Refuse(spec.CodeConfig, "10.1.0.2 is leased to container one, interface eth0", spec.Add, "bridge", now, two)
	h.Refuse(spec.CodeNotReady, "10.1.0.2 is leased to container one, interface eth0", spec.Status, "bridge", now, two)
	h.Must(spec.Del, "bridge", before, one)

	other := conf("other", "10.1.0.0/24")
	h.Must(spec.Add, "bridge", other, one)
	h.Refuse(spec.CodeConfig, "of other/one/eth0 is a port of br0; DEL what is in the old subnet", spec.Add, "bridge", now, two)
	h.Must(spec.Del, "bridge", other, one)

	snapshot := kerneltest.Snapshot(t, h.NS)
	fault.Hook = func(what string) error {
		if strings.HasPrefix(what, "nft batch") {
			return errors.New("made to fail")
		}
		return nil
	}
	h.Refuse(999, "made to fail", spec.Add, "bridge", now, two)
	fault.Hook = nil
	if after := kerneltest.Snapshot(t, h.NS); after != snapshot {
		t.Errorf("a failed ADD left:\n%s", kerneltest.Diff(snapshot, after))
	}
	warned.Reset()
	h.Must(spec.Status, "bridge", now, applettest.Container{})
	out := h.Must(spec.Add, "bridge", now, two)
	h.Must(spec.Check, "bridge", applettest.Prev(now, out), two)
	h.Must(spec.Add, "bridge", now, three)
	const warning = "br0 had the address of a subnet that nothing uses any more, [10.1.0.1/24]: replaced by [10.2.0.1/24]"
	if strings.Count(warned.String(), warning) != 1 || strings.Contains(kerneltest.Snapshot(t, h.NS), "10.1.0.1") {
		t.Errorf("warned %q", &warned)
	}
}

// An address that cannot be the bridge's is refused as gateway, whether the IPAM plugin returns it
// or it is the first address of the subnet.
func TestKernelBridgeInvalidGateway(t *testing.T) {
	h := applettest.NewHost(t)
	static := `{"type":"static","addresses":[{"address":"A","gateway":"GW"}]}`
	for name, tt := range map[string]struct{ ipam, address, gateway string }{
		"the address itself":         {static, "10.7.0.2/24", "10.7.0.2"},
		"the address itself, unsaid": {strings.Replace(static, `,"gateway":"GW"`, "", 1), "10.3.0.1/24", "10.3.0.1"},
		"another own address": {`{"type":"static","addresses":[{"address":"A","gateway":"GW"},{"address":"10.7.0.3/24"}]}`,
			"10.7.0.2/24", "10.7.0.3"},
		"no address":        {static, "10.7.0.2/24", "0.0.0.0"},
		"broadcast":         {static, "10.7.0.2/25", "10.7.0.127"},
		"limited broadcast": {static, "10.7.0.2/24", "255.255.255.255"},
		"nothing follows":   {strings.Replace(static, `,"gateway":"GW"`, "", 1), "255.255.255.255/32", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := `"isGateway":true,"ipam":` + strings.NewReplacer("A\"", tt.address+`"`, "GW", tt.gateway).Replace(tt.ipam)
			want := "address " + tt.address + " needs a gateway of its own family, an address of another host: set \\\"gateway\\\" in \\\"ipam\\\""
			h.Refuse(spec.CodeConfig, want, spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"demo","type":"bridge",`+keys+`}`, h.Container("ctr"))
		})
	}
	h.Must(spec.Add, "bridge", `{"cniVersion":"1.1.0","name":"demo","type":"bridge","isGateway":true,
		"ipam":{"type":"static","addresses":[{"address":"10.7.0.2/31","gateway":"10.7.0.3"}]}}`, h.Container("pair"))
}

// ADD and STATUS name what the kernel or the host lacks: VLANs on a new or existing bridge, and
// IPv6.
func TestKernelBridgeWithoutKernelSupport(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "br1", Kind: rtnl.Bridge{}, Up: true})
	err := h.NS.SetSysctls(netns.Sysctl{Key: "net/ipv6/conf/default/disable_ipv6", Value: "1"}, netns.Sysctl{Key: "net/ipv6/conf/br1/accept_ra", Value: "0"})
	if err != nil {
		t.Fatal(err)
	}
	off := "IPv6 is off on br0: set net/ipv6/conf/br0/disable_ipv6 to 0 on the host"
	h.Refuse(spec.CodeHost, off, spec.Add, "bridge", applettest.GatewayConf, p)
	fault.Hook = func(what string) error {
		if strings.HasPrefix(what, "link add br") || strings.Contains(what, "vlan_filtering on") {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	for _, bridge := range []string{"br0", "br1"} {
		want := `bridge \"` + bridge + `\": this kernel lacks CONFIG_BRIDGE_VLAN_FILTERING: drop \"vlan\" and \"vlanTrunk\"`
		for _, keys := range []string{`"vlan":5`, `"vlanTrunk":[{"id":7}]`} {
			conf := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"` + bridge + `",` + keys + `}`
			h.Refuse(spec.CodeHost, want, spec.Add, "bridge", conf, p)
			h.Refuse(spec.CodeNotReady, "this kernel lacks CONFIG_BRIDGE_VLAN_FILTERING", spec.Status, "bridge", conf, p)
		}
	}
	h.Must(spec.Status, "bridge", `{"cniVersion":"1.1.0","name":"demo","type":"bridge"}`, p)
}

// With an address the kernel deletes the secondary ones of the same subnet. The gateway address
// remains, even if it is secondary.
func TestKernelBridgeForceAddressKeepsSecondary(t *testing.T) {
	h := applettest.NewHost(t)
	host := kerneltest.Dial(t, h.NS)
	err := h.NS.SetSysctls(netns.Sysctl{Key: "net/ipv4/conf/all/promote_secondaries", Value: "0"},
		netns.Sysctl{Key: "net/ipv4/conf/default/promote_secondaries", Value: "0"})
	if err == nil {
		err = host.AddLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true})
	}
	br := kerneltest.Link(t, host, "br0").Index
	for _, a := range []string{"10.1.0.9/24", "10.1.0.8/24", "10.1.0.1/24"} {
		if err == nil {
			err = host.AddAddr(br, rtnl.Addr{Prefix: netip.MustParsePrefix(a)})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(applettest.GatewayConf, `"ipMasq"`, `"forceAddress":true,"ipMasq"`, 1)
	p := h.Container("ctr")
	h.Must(spec.Check, "bridge", applettest.Prev(conf, h.Must(spec.Add, "bridge", conf, p)), p)
}

// A second network does not replace the default routes of the first one: its own go behind.
func TestKernelBridgeSecondNetwork(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	h.Must(spec.Add, "bridge", applettest.GatewayConf, p)
	second := strings.NewReplacer(`"demo"`, `"second"`, "10.1.", "10.2.", "fd00:1:", "fd00:2:", "br0", "br1").Replace(applettest.GatewayConf)
	out := h.Must(spec.Add, "bridge", second, p, "CNI_IFNAME=net1")
	for dst, want := range map[string][]string{"0.0.0.0/0": {"10.1.0.1", "10.2.0.1"}, "::/0": {"fd00:1::1", "fd00:2::1"}} {
		if got := viaOf(t, p, dst); !slices.Equal(got, want) || !strings.Contains(out, `"`+dst+`"`) {
			t.Errorf("%s leads to %q, want %q: %s", dst, got, want, out)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(second, out), p, "CNI_IFNAME=net1")
	h.Must(spec.Del, "bridge", second, p, "CNI_IFNAME=net1")
	h.Must(spec.Get, "bridge", applettest.GatewayConf, p)
}

// MTU, MSS, metric and table of a route are set in the kernel.
func TestKernelBridgeRouteMembers(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	conf := strings.Replace(applettest.GatewayConf, `"ranges":`, `"routes":[{"dst":"10.9.0.0/16","mtu":1300,"advmss":1200,"priority":7},
		{"dst":"10.8.0.0/16","gw":"10.1.0.9","table":300},{"dst":"10.7.0.0/16","scope":253}],"ranges":`, 1)
	out := h.Must(spec.Add, "bridge", conf, p)
	h.Must(spec.Check, "bridge", applettest.Prev(conf, out), p)
	cont := kerneltest.Dial(t, p.NS)
	route := func(dst string, table int) rtnl.Route {
		found, err := cont.Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix(dst), Table: table})
		if err != nil || len(found) != 1 {
			t.Fatalf("route %s in table %d: %v %v", dst, table, found, err)
		}
		return found[0]
	}
	if r := route("10.9.0.0/16", 0); r.MTU != 1300 || r.AdvMSS != 1200 || r.Priority != 7 || r.GW.String() != "10.1.0.1" {
		t.Errorf("got %+v, want mtu 1300, advmss 1200, metric 7, via 10.1.0.1", r)
	}
	if r := route("10.8.0.0/16", 300); r.GW.String() != "10.1.0.9" {
		t.Errorf("got %+v, want via 10.1.0.9", r)
	}
	if r := route("10.7.0.0/16", 0); r.GW.IsValid() {
		t.Errorf("got %+v, want no gateway: its scope is the link", r)
	}
}
