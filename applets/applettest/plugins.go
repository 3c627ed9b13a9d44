package applettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

// A Plugin is what the tests over all plugins know of one.
type Plugin struct {
	// Confs are configurations that take all steps of ADD between them. Of those in Single a
	// host can have one attachment at a time.
	Confs, Single map[string]string

	Need    func(testing.TB)            // skips the test where the kernel lacks something; may be nil
	Prepare func(*Host)                 // makes what the host has beside lo; may be nil
	After   string                      // the plugin that makes the interface which this one changes
	Ready   func(*testing.T, Container) // changes the container before ADD; may be nil

	// Of a plugin whose link has no part on the host: its kind, and keys for ChildConf.
	Kind rtnl.Kind
	Keys string
}

// Ranges is an ipam configuration with addresses of both families.
const Ranges = `"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`

// GatewayConf is a bridge that is the gateway of both families.
const GatewayConf = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,` + Ranges + `}}`

// PtpConf is a ptp network with default routes of both families.
const PtpConf = `{"cniVersion":"1.1.0","name":"demo","type":"ptp","ipMasq":true,` + Ranges + `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`

// BothLimits are keys of bandwidth.
const BothLimits = `"ingressRate":8000000,"egressRate":8000000`

// Plugins are the plugins that make or change interfaces.
var Plugins = map[string]Plugin{
	"bridge": {Need: NeedBridge, Confs: map[string]string{
		"gateway": Conf("bridge", `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"hairpinMode":true,"portIsolation":true,"mtu":1400,`+
			Ranges+`,"routes":[{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}`),
		"layer 2": Conf("bridge", `"bridge":"br0","promiscMode":true`),
	}},
	"ptp": {Confs: map[string]string{
		"routes": Conf("ptp", `"ipMasq":true,"mtu":1400,`+Ranges+`,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}`),
	}},
	"macvlan": child(Plugin{
		Need: needKind("CONFIG_MACVLAN", rtnl.Macvlan{}), Kind: rtnl.Macvlan{}, Keys: `,"master":"up0","bcqueuelen":77,"mac":"02:00:00:00:00:05"`,
		Confs: map[string]string{"bridge": ChildConf("macvlan", `,"master":"up0"`), "layer 2": Conf("macvlan", `"master":"up0"`)},
		Single: map[string]string{"passthru": Conf("macvlan", `"master":"up0","mode":"passthru","mac":"02:00:00:00:00:06",`+
			Ranges+`,"routes":[{"dst":"fd00:9::/64"}]}`)},
	}, "macvlan"),
	"ipvlan": child(Plugin{
		Need: needKind("CONFIG_IPVLAN", rtnl.Ipvlan{}), Kind: rtnl.Ipvlan{}, Keys: `,"master":"up0"`,
		Confs: map[string]string{"l3s": ChildConf("ipvlan", `,"master":"up0","mode":"l3s","flag":"private"`)},
	}, "ipvlan"),
	"vlan": child(Plugin{
		Need: needKind("CONFIG_VLAN_8021Q", rtnl.Vlan{ID: 7}), Kind: rtnl.Vlan{ID: 7}, Keys: `,"master":"up0","vlanId":42`,
		Single: map[string]string{"mac": ChildConf("vlan", `,"master":"up0","vlanId":4094,"mtu":1400,"mac":"02:00:00:00:00:07"`)},
	}, "vlan"),
	"dummy": child(Plugin{
		Need: needKind("CONFIG_DUMMY", rtnl.Dummy{}), Kind: rtnl.Dummy{},
		Confs: map[string]string{"both families": Conf("dummy", Ranges+`,"routes":[{"dst":"fd00:9::/64"}]}`)},
	}, "dummy"),
	"tap": {Need: NeedTap, Confs: map[string]string{
		"all keys": Conf("tap", `"multiQueue":true,"mtu":1400,"owner":1,"group":2,`+Ranges+`,"routes":[{"dst":"0.0.0.0/0"}]}`),
	}},
	"host-device": {Prepare: func(h *Host) { h.NIC("nic0") }, Single: map[string]string{"nic0": DeviceConf("nic0")}},
	"flannel": {Need: NeedBridge, Prepare: func(h *Host) { h.SubnetEnv() }, Confs: map[string]string{
		"bridge": FlannelConf,
	}},

	"portmap": {After: "bridge", Single: map[string]string{
		"both protocols": Conf("portmap", `"dataDir":"$DIR/portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80},
			{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}`),
	}},
	"firewall": {After: "bridge", Confs: map[string]string{"isolated": Conf("firewall", `"ingressPolicy":"isolated"`)}},
	"bandwidth": {After: "ptp", Need: NeedShaping, Confs: map[string]string{
		"both directions": Conf("bandwidth", `"dataDir":"$DIR/bandwidth",`+BothLimits),
	}},
	"tuning": {After: "bridge", Confs: map[string]string{
		"all attributes": Conf("tuning", `"dataDir":"$DIR/tuning","mac":"02:00:00:00:00:AA","promisc":true,"mtu":1300,"allmulti":true,"txQLen":77,
			"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`),
	}},
	"sbr": {After: "bridge", Ready: secondLink, Confs: map[string]string{
		"plain":    Conf("sbr", `"dataDir":"$DIR/sbr"`),
		"gateways": Conf("sbr", `"dataDir":"$DIR/sbr","gateways":["10.1.0.99"]`),
		"hints":    Conf("sbr", `"dataDir":"$DIR/sbr","addSourceHints":true`),
		"table":    Conf("sbr", `"dataDir":"$DIR/sbr","table":500`),
	}},
	"vrf": {After: "bridge", Need: needKind("CONFIG_NET_VRF", rtnl.VRF{Table: 9}), Ready: HadVRF, Confs: map[string]string{
		"blue": Conf("vrf", `"dataDir":"$DIR/vrf","vrfname":"blue"`),
	}},
}

// Conf is a configuration of network demo with a plugin's own keys.
func Conf(plugin, keys string) string {
	return `{"cniVersion":"1.1.0","name":"demo","type":"` + plugin + `",` + keys + `}`
}

// child completes the descriptor of a plugin with Kind.
func child(p Plugin, name string) Plugin {
	p.Prepare = func(h *Host) { h.Segment() }
	if p.Single == nil {
		p.Single = map[string]string{}
	}
	p.Single["keys"] = ChildConf(name, p.Keys)
	return p
}

// ChildConf is a configuration with IPv4 addresses, which need no waiting, for a host with
// [Host.Segment].
func ChildConf(plugin, keys string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":%q%s,"ipam":{"type":"host-local","dataDir":"$DIR","resolvConf":"$DIR/resolv.conf",
		"subnet":"10.1.0.0/24","routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.1","mtu":1300}]}}`, plugin, keys)
}

// Children are the plugins with a Kind.
func Children() []string { return []string{"dummy", "ipvlan", "macvlan", "vlan"} }

// FlannelConf is a flannel network for a host with [Host.SubnetEnv].
const FlannelConf = `{"cniVersion":"1.1.0","name":"demo","type":"flannel","subnetFile":"$DIR/subnet.env","dataDir":"$DIR/flannel",
	"delegate":{"bridge":"br0","isDefaultGateway":true,"hairpinMode":true},"ipam":{"dataDir":"$DIR"}}`

// SubnetEnv writes $DIR/subnet.env, as flanneld does.
func (h *Host) SubnetEnv() {
	h.T.Helper()
	const env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/56\n" +
		"FLANNEL_IPV6_SUBNET=fd00:10:244:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	h.NoError(os.WriteFile(filepath.Join(h.Dir, "subnet.env"), []byte(env), 0o600))
}

// DeviceKeys are keys of host-device beside the one that selects the device.
const DeviceKeys = `"dataDir":"$DIR/records","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}`

// DeviceConf is a host-device network of a device.
func DeviceConf(device string) string {
	return Conf("host-device", `"device":"`+device+`",`+DeviceKeys)
}

// NIC adds a link that stands for a network card: one end of a veth pair, with an alias,
// whose other end, wire-NAME, is up.
func (h *Host) NIC(name string) *rtnl.Link {
	h.T.Helper()
	c := kerneltest.Dial(h.T, h.NS)
	addr, _ := net.ParseMAC("02:00:00:00:00:0" + name[len(name)-1:])
	h.NoError(c.AddLink(rtnl.LinkSpec{Name: name, MAC: addr, MTU: 1450, Up: true,
		Peer: &rtnl.LinkSpec{Name: "wire-" + name}}))
	h.NoError(c.Do(rtnl.ChangeLink(kerneltest.Link(h.T, c, "wire-"+name).Index, rtnl.LinkChange{Up: new(true)}),
		rtnl.ChangeLink(kerneltest.Link(h.T, c, name).Index, rtnl.LinkChange{Alias: new("uplink of " + name)})))
	return kerneltest.Link(h.T, c, name)
}

// secondLink adds a link in the network that bridge gives addresses of, whose routes sbr must leave.
func secondLink(t *testing.T, c Container) {
	t.Helper()
	conn := kerneltest.Dial(t, c.NS)
	l, err := conn.CreateLink(rtnl.LinkSpec{Name: "eth1", Up: true, Peer: &rtnl.LinkSpec{Name: "peer1", Up: true}})
	for _, addr := range []string{"10.1.0.200/24", "fd00:1::200/64"} {
		if err == nil {
			err = conn.AddAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(addr), NoDAD: true})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// HadVRF makes the kernel add the rules of a namespace that it adds with the first VRF and
// never deletes.
func HadVRF(t *testing.T, c Container) {
	t.Helper()
	conn := kerneltest.Dial(t, c.NS)
	kerneltest.Need(t, "CONFIG_NET_VRF", func() error {
		return conn.AddLink(rtnl.LinkSpec{Name: "first", Kind: rtnl.VRF{Table: 9}})
	})
	if err := conn.DelLink("first"); err != nil {
		t.Fatal(err)
	}
}

// NeedBridge skips the test where the kernel has no bridges.
func NeedBridge(t testing.TB) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{}})
	})
}

// NeedTap skips the test where the kernel has no taps.
func NeedTap(t testing.TB) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_TUN", rtnl.ProbeTap)
}

// NeedShaping skips the test where the kernel lacks a part of what bandwidth uses.
func NeedShaping(t testing.TB) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_IFB, CONFIG_NET_SCH_TBF, CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED", func() error {
		c := kerneltest.Dial(t, kerneltest.NS(t))
		ifb, err := c.CreateLink(rtnl.LinkSpec{Name: "ifb9", Kind: rtnl.IFB{}})
		if err != nil {
			return err
		}
		return c.Do(rtnl.NewTBF(ifb.Index, rtnl.TBF{Rate: 1000, Burst: 2000, Limit: 2000}),
			rtnl.NewIngress(ifb.Index), rtnl.NewRedirect(ifb.Index, ifb.Index))
	})
}

func needKind(feature string, kind rtnl.Kind) func(testing.TB) {
	return func(t testing.TB) { t.Helper(); kerneltest.NeedKind(t, feature, kind) }
}
