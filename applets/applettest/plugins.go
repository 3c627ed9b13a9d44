package applettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// A Plugin has the facts about a plugin for tests over all plugins. $DIR in a configuration is the
// host's directory. The zero value is a plugin without keys that requires nothing.
type Plugin struct {
	// Keys are the plugin's own keys in the configuration that [Plain] returns.
	Keys string
	// Other is a member for a second attachment, if a host can have only one with Keys.
	Other string
	// Invalid are members that ADD must refuse. DEL is called with the first.
	Invalid []string
	// Confs are configurations that together run all steps of ADD; a host can have one attachment
	// at a time with each of Single. If both are empty, the configuration is that with Keys.
	Confs, Single map[string]string

	After    string                      // the plugin that makes the interface for this one; empty: none
	OrAfter  string                      // another such plugin
	Again    string                      // members of an earlier ADD, whose values a second ADD replaces
	Prepare  func(*Host)                 // adds to the host what ADD needs; may be nil
	Ready    func(*testing.T, Container) // prepares the container for ADD; may be nil
	TakeAway func(*Host)                 // deletes the host links on which the attachment depends; nil: as After

	Feature string           // kernel option, such as CONFIG_DUMMY; empty: every kernel has it
	Kind    rtnl.Kind        // link type that Need tries to make; nil: none
	Probe   func(testing.TB) // skips the test if the kernel lacks something else; may be nil

	Child    bool // the link has no part on the host
	Hardware bool // the link is the host's, and the kernel returns it
	Args     bool // reads CNI_ARGS without ipam
	Idle     bool // ADD changes nothing

	Except map[string]string // cells of TestKernelDelMatrix that cannot exist, with the reason
}

// Need skips the test if the kernel lacks what the plugin needs.
func (p Plugin) Need(t testing.TB) {
	t.Helper()
	if p.Kind != nil {
		kerneltest.NeedKind(t, p.Feature, p.Kind)
	}
	if p.Probe != nil {
		p.Probe(t)
	}
}

// NeedChain calls Need of After and of this plugin.
func (p Plugin) NeedChain(t testing.TB) {
	t.Helper()
	if p.After != "" {
		Plugins[p.After].NeedChain(t)
	}
	p.Need(t)
}

// Furnish calls Prepare of After and of this plugin.
func (p Plugin) Furnish(h *Host) {
	h.Helper()
	if p.After != "" {
		Plugins[p.After].Furnish(h)
	}
	if p.Prepare != nil {
		p.Prepare(h)
	}
}

// Below returns TakeAway of this plugin, or else of After; nil: none.
func (p Plugin) Below() func(*Host) {
	if p.TakeAway == nil && p.After != "" {
		return Plugins[p.After].Below()
	}
	return p.TakeAway
}

// Excuse returns why a cell cannot exist; empty: it can. For cells about the parent it also uses
// the reason of After.
func (p Plugin) Excuse(cell string) string {
	if why := p.Except[cell]; why != "" || cell != BelowMissing || p.After == "" || p.TakeAway != nil {
		return why
	}
	return Plugins[p.After].Excuse(cell)
}

// BelowMissing is the cell of TestKernelDelMatrix in which TakeAway has been called.
const BelowMissing = "below missing"

// Alone is Except for a plugin without TakeAway.
var Alone = map[string]string{BelowMissing: "the attachment depends on no link of the host that is not its own"}

const unplugged = "hardware that is gone from the container, and not back, is gone from the host: see below missing"

// IPAM is an ipam object with IPv4 addresses.
const IPAM = `"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`

// Plain returns the configuration of a network with Keys. A plugin that makes the interface gets
// [IPAM], unless Keys has ipam.
func Plain(plugin, network string) string {
	keys := Plugins[plugin].Keys
	if Makes(plugin) && !strings.Contains(keys, `"ipam"`) {
		keys = join(keys, IPAM)
	}
	return "{" + join(fmt.Sprintf(`"cniVersion":"1.1.0","name":%q,"type":%q`, network, plugin), keys) + "}"
}

// join joins members of an object; more may be empty.
func join(members, more string) string {
	if members == "" || more == "" {
		return members + more
	}
	return members + "," + more
}

// OnlyAddresses reports whether a plugin neither makes nor changes an interface. Such a plugin is
// the IPAM plugin of its own configuration.
func OnlyAddresses(plugin string) bool {
	return strings.Contains(Plugins[plugin].Keys, `"ipam":{"type":"`+plugin+`"`)
}

// Makes reports whether a plugin makes the interface or moves it into the container.
func Makes(plugin string) bool {
	return Plugins[plugin].After == "" && plugin != "loopback" && !OnlyAddresses(plugin)
}

// All returns Confs and Single, or without either the configuration with Keys.
func All(plugin string) (confs, single map[string]string) {
	p := Plugins[plugin]
	switch plain := map[string]string{"keys": Plain(plugin, "demo")}; {
	case len(p.Confs)+len(p.Single) > 0:
		return p.Confs, p.Single
	case p.Other != "":
		return nil, plain
	default:
		return plain, nil
	}
}

// Ranges is the beginning of an ipam object with addresses of both families.
const Ranges = `"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]`

// GatewayConf is a bridge that is the gateway of both families.
const GatewayConf = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,` + Ranges + `}}`

// PtpConf is a ptp network with default routes of both families.
const PtpConf = `{"cniVersion":"1.1.0","name":"demo","type":"ptp","ipMasq":true,` + Ranges + `,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`

// BothLimits are keys of bandwidth.
const BothLimits = `"ingressRate":8000000,"egressRate":8000000`

// Plugins has an entry for each plugin, with what tests over all plugins need.
var Plugins = map[string]Plugin{
	"bridge": {
		Keys: `"bridge":"br0","isGateway":true,"ipMasq":true`, Feature: "CONFIG_BRIDGE", Probe: NeedBridge, TakeAway: dropLinks("br0"),
		Confs: map[string]string{
			"gateway": Conf("bridge", `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"macspoofchk":true,"hairpinMode":true,"portIsolation":true,"mtu":1400,`+
				Ranges+`,"routes":[{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}`),
			"layer 2": Conf("bridge", `"bridge":"br0","promiscMode":true`),
		},
		Invalid: []string{`"mtu":-1`, `"mtu":"x"`, `"mtu":1e99`, `"mtu":67`, `"vlan":4095`, `"vlan":1.5`, `"hairpinMode":1`, `"isGateway":"yes"`,
			`"vlanTrunk":{}`, `"vlanTrunk":[{"minID":9,"maxID":1}]`, `"ipMasqBackend":"x"`, `"bridge":1`,
			`"bridge":"longer than a name"`, `"bridge":"bridge-of-14-b","vlan":100`},
	},
	"ptp": {
		Except: Alone,
		Confs: map[string]string{
			"routes": Conf("ptp", `"ipMasq":true,"mtu":1400,`+Ranges+`,"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}`),
		},
		Invalid: []string{`"mtu":-1`, `"mtu":67`, `"mtu":1e99`, `"ipMasq":"yes"`, `"ipMasqBackend":"x"`, `"ipam":{}`, `"mac":"x"`, `"runtimeConfig":{"mac":"01:00:00:00:00:00"}`},
	},
	"macvlan": child("macvlan", Plugin{
		Keys:    `"master":"up0","mode":"private","bcqueuelen":77`,
		Feature: "CONFIG_MACVLAN", Kind: rtnl.Macvlan{}, TakeAway: dropLinks("up0"),
		Confs: map[string]string{"bridge": ChildConf("macvlan", `"master":"up0"`), "layer 2": Conf("macvlan", `"master":"up0"`)},
		Single: map[string]string{
			"mac":      ChildConf("macvlan", `"master":"up0","bcqueuelen":77,"mac":"02:00:00:00:00:05"`),
			"passthru": Conf("macvlan", `"master":"up0","mode":"passthru","mac":"02:00:00:00:00:06",`+Ranges+`,"routes":[{"dst":"fd00:9::/64"}]}`),
		},
		Invalid: []string{`"mode":"x"`, `"mode":1`, `"mtu":-1`, `"mtu":1e99`, `"master":1`, `"master":"a/b"`, `"bcqueuelen":-1`, `"linkInContainer":1`},
	}),
	"ipvlan": child("ipvlan", Plugin{
		Keys: `"master":"up0"`, Feature: "CONFIG_IPVLAN", Kind: rtnl.Ipvlan{}, TakeAway: dropLinks("up0"),
		Confs:   map[string]string{"l3s": ChildConf("ipvlan", `"master":"up0","mode":"l3s","flag":"private"`)},
		Invalid: []string{`"mode":"x"`, `"mode":"L2"`, `"flag":"x"`, `"flag":1`, `"mtu":67`, `"master":".."`},
	}),
	"vlan": child("vlan", Plugin{
		Keys: `"master":"up0","vlanId":42`, Other: `"vlanId":43`, Feature: "CONFIG_VLAN_8021Q", Kind: rtnl.Vlan{ID: 7}, TakeAway: dropLinks("up0"),
		Single:  map[string]string{"mac": ChildConf("vlan", `"master":"up0","vlanId":4094,"mtu":1400,"mac":"02:00:00:00:00:07"`)},
		Invalid: []string{`"vlanId":5000`, `"vlanId":4095`, `"vlanId":-1`, `"vlanId":"x"`, `"master":""`, `"master":null`, `"ipam":{}`},
	}),
	"dummy": child("dummy", Plugin{
		Feature: "CONFIG_DUMMY", Kind: rtnl.Dummy{}, Except: Alone,
		Confs:   map[string]string{"both families": Conf("dummy", Ranges+`,"routes":[{"dst":"fd00:9::/64"}]}`)},
		Invalid: []string{`"mac":"x"`, `"ipam":{}`, `"mac":1`, `"runtimeConfig":{"mac":"01:00:00:00:00:00"}`},
	}),
	"tap": {
		Feature: "CONFIG_TUN", Probe: NeedTap, Except: Alone,
		Confs: map[string]string{
			"all keys": Conf("tap", `"multiQueue":true,"mtu":1400,"owner":1,"group":2,`+Ranges+`,"routes":[{"dst":"0.0.0.0/0"}]}`),
		},
		Invalid: []string{`"mtu":-1`, `"mtu":67`, `"owner":-1`, `"owner":"root"`, `"group":4294967295`, `"multiQueue":1`, `"bridge":"../x"`, `"bridge":"none"`,
			`"selinuxContext":"a\u0000b"`, `"selinuxContext":"a\nb"`},
	},
	"host-device": {
		Keys: `"device":"card1","dataDir":"$DIR/devices"`, Other: `"device":"card2"`, Hardware: true,
		Prepare: cards, TakeAway: dropLinks("wire-nic0", "wire1", "wire2"),
		Single: map[string]string{"nic0": DeviceConf("nic0")},
		Invalid: []string{`"pciBusID":"x"`, `"device":"a/b"`, `"device":"none"`, `"device":""`, `"device":null,"hwaddr":"x"`, `"device":null,"kernelpath":"/etc"`,
			`"device":null,"kernelpath":"/sys/devices/../../etc"`, `"device":null,"pciBusID":"../x"`, `"device":null,"pciBusID":"0000:00:1f.9"`,
			`"device":null,"runtimeConfig":{"deviceID":"../../x"}`, `"dataDir":"x"`},
		Except: map[string]string{
			"link missing": unplugged, "link and prevResult missing": unplugged,
			"namespace empty, container alive": "only the container can reach what is in it",
		},
	},
	"flannel": {
		Keys:    `"subnetFile":"$DIR/subnet.env","dataDir":"$DIR/subnets","delegate":{"bridge":"br0"},"ipam":{"dataDir":"$DIR"}`,
		Feature: "CONFIG_BRIDGE", Probe: NeedBridge, Prepare: func(h *Host) { h.SubnetEnv() }, TakeAway: dropLinks("br0"),
		Confs:   map[string]string{"bridge": FlannelConf},
		Invalid: []string{`"delegate":{"name":"x"}`, `"delegate":1`, `"delegate":{"ipam":{}}`, `"delegate":{"type":"../x"}`, `"dataDir":"x"`, `"subnetFile":1`},
	},
	"loopback": {Ready: func(t *testing.T, c Container) { t.Helper(); kerneltest.LoDown(t, c.NS) }, Except: map[string]string{
		BelowMissing: Alone[BelowMissing], "link missing": "lo cannot be deleted", "invalid configuration": "it has no keys",
	}},

	"cnibox": { // a folded list
		Keys: `"plugins":[{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,` + IPAM + `},{"type":"firewall","dataDir":"$DIR/firewall"},` +
			`{"type":"tuning","dataDir":"$DIR/tuning","mtu":1400}]`,
		Feature: "CONFIG_BRIDGE, CONFIG_IFB", Probe: func(t testing.TB) { t.Helper(); NeedBridge(t); NeedShaping(t) }, TakeAway: dropLinks("br0"),
		Single: map[string]string{
			"list of five": Conf("cnibox", `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}],"bandwidth":{"ingressRate":8000000,"egressRate":8000000}},`+
				`"plugins":[`+GatewayConf+`,{"type":"portmap","dataDir":"$DIR/ports","capabilities":{"portMappings":true}},{"type":"firewall","dataDir":"$DIR/firewall"},`+
				`{"type":"bandwidth","dataDir":"$DIR/bandwidth","capabilities":{"bandwidth":true}},`+
				`{"type":"tuning","dataDir":"$DIR/tuning","mtu":1400,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]`),
		},
		Invalid: []string{`"plugins":[{"type":"bridge","bridge":"br0","mtu":-1,` + IPAM + `},{"type":"firewall","dataDir":"$DIR/firewall","ingressPolicy":"x"},{"type":"tuning","dataDir":"$DIR/tuning","mtu":-1}]`,
			`"plugins":[]`, `"plugins":null`, `"plugins":{}`, `"plugins":[1]`, `"plugins":[{}]`, `"plugins":[{"type":"../x"}]`, `"plugins":[{"type":"bridge","bridge":1,` + IPAM + `}]`,
			`"plugins":[{"type":"cnibox","plugins":[{"type":"ptp",` + IPAM + `}]}]`, `"runtimeConfig":1`,
			`"plugins":[{"type":"ptp",` + IPAM + `},{"type":"tuning","dataDir":"$DIR/tuning","mtu":-1}]`},
	},
	"host-local": {
		Keys: IPAM, Except: Alone,
		Invalid: []string{`"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"x"}`,
			`"ipam":{"type":"host-local"}`, `"ipam":{"type":"host-local","subnet":"10.1.0.0"}`, `"ipam":{"type":"host-local","subnet":5}`,
			`"ipam":{"type":"host-local","subnet":"10.1.0.0/31"}`, `"ipam":{"type":"host-local","subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}`,
			`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/16"}]]}`, `"ipam":{"type":"host-local","ranges":[[null]]}`,
			`"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[null]}`, `"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`,
			`"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":"10.3.0.0/24","mtu":67}]}`, `"ipam":{"type":"host-local","subnet":"10.1.0.0/24","routes":[{"dst":""}]}`},
	},
	"static": {
		Keys: `"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"}]}`, Idle: true, Except: Alone,
		Invalid: []string{`"ipam":{"type":"static","addresses":[{"address":"x"}]}`,
			`"ipam":{"type":"static","addresses":[{"address":"10.1.0.2"}]}`, `"ipam":{"type":"static","addresses":[{}]}`, `"ipam":{"type":"static","addresses":[null]}`,
			`"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24","gateway":"x"}]}`, `"ipam":{"type":"static","routes":[{"dst":"x"}]}`,
			`"ipam":{"type":"static","routes":[{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`, `"ipam":{"type":"static","routes":[{"dst":"fd03::/64","gw":"10.1.0.1"}]}`,
			`"ipam":{"type":"static","routes":[{"dst":"10.3.0.0/24","mtu":67}]}`, `"ipam":{"type":"static","routes":[{"dst":"10.3.0.0/24","mtu":65536}]}`,
			`"ipam":{"type":"static","dns":{"nameservers":["x"]}}`, `"args":{"cni":{"ips":["x"]}}`},
	},
	"dhcp": { // its daemon makes the changes; test/e2e starts it
		Keys: `"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock"}`, After: "bridge", Idle: true,
		Invalid: []string{`"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock","priority":-1}`,
			`"ipam":{"type":"dhcp","daemonSocketPath":"x.sock"}`, `"ipam":{"type":"dhcp","daemonSocketPath":"/a\u0000b"}`, `"ipam":{"type":"dhcp","priority":-1}`,
			`"ipam":{"type":"dhcp","provide":[{"option":"x"}]}`, `"ipam":{"type":"dhcp","provide":{}}`, `"ipam":{"type":"dhcp","request":[{"option":"256"}]}`,
			`"ipam":{"type":"dhcp","request":[{"option":53}]}`, `"ipam":{"type":"dhcp","ipv4":false}`, `"ipam":{"type":"dhcp","ipv6":"yes"}`},
	},

	"portmap": {
		Keys:  `"dataDir":"$DIR/ports","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]}`,
		Other: `"runtimeConfig":{"portMappings":[{"hostPort":8081,"containerPort":80}]}`, After: "bridge",
		Single: map[string]string{
			"both protocols": Conf("portmap", `"dataDir":"$DIR/portmap","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80},
			{"hostPort":8080,"containerPort":80,"protocol":"udp"}]}`),
		},
		Invalid: []string{`"runtimeConfig":{"portMappings":[{"hostPort":70000}]}`, `"runtimeConfig":1`, `"runtimeConfig":{"portMappings":{}}`, `"runtimeConfig":{"portMappings":[1]}`,
			`"runtimeConfig":{"portMappings":[{"hostPort":70000,"containerPort":1}]}`, `"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":0}]}`,
			`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"hostIP":"::1%eth0"}]}`,
			`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]}`,
			`"markMasqBit":32`, `"conditionsV4":"x"`, `"conditionsV4":["--jump","ACCEPT"]`, `"backend":"x"`, `"snat":"x"`},
	},
	"firewall": {
		Keys: `"ingressPolicy":"isolated","dataDir":"$DIR/firewall"`, After: "bridge", Again: `"ingressPolicy":"open"`,
		Invalid: []string{`"ingressPolicy":"x"`, `"backend":"x"`, `"iptablesAdminChainName":"a b"`, `"iptablesAdminChainName":"$(reboot)"`, `"firewalldZone":1`, `"backend":"firewalld","dbusSocket":"x"`},
	},
	"bandwidth": {
		Keys:  `"dataDir":"$DIR/bandwidth","runtimeConfig":{"bandwidth":{"ingressRate":8000000,"egressRate":8000000}}`,
		After: "ptp", Again: `"ingressRate":80000,"egressRate":80000,"runtimeConfig":null`, Feature: "CONFIG_IFB", Probe: NeedShaping,
		Confs: map[string]string{
			"both directions":    Conf("bandwidth", `"dataDir":"$DIR/bandwidth",`+BothLimits),
			"to the container":   Conf("bandwidth", `"dataDir":"$DIR/bandwidth","ingressRate":8000000`),
			"from the container": Conf("bandwidth", `"dataDir":"$DIR/bandwidth","egressRate":8000000`),
		},
		Invalid: []string{`"latency":-1`, `"runtimeConfig":{"bandwidth":{"ingressRate":-1}}`, `"runtimeConfig":{"bandwidth":{"ingressRate":7}}`,
			`"runtimeConfig":{"bandwidth":{"ingressBurst":8}}`, `"runtimeConfig":{"bandwidth":{"egressRate":8,"egressBurst":1e99}}`,
			`"runtimeConfig":{"bandwidth":{"egressRate":8,"egressBurst":34359738368}}`, `"runtimeConfig":{"bandwidth":[]}`, `"latency":10001`},
	},
	"tuning": {
		Keys: `"dataDir":"$DIR/tuning","mtu":1400`, After: "bridge", Args: true,
		Confs: map[string]string{
			"all attributes": Conf("tuning", `"dataDir":"$DIR/tuning","mac":"02:00:00:00:00:AA","promisc":true,"mtu":1300,"allmulti":true,"txQLen":77,
			"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.ipv4.ip_local_port_range":"2000 3000","net.ipv4.ip_local_reserved_ports":"8081,8080"}`),
		},
		OrAfter: "macvlan", Again: `"mac":"","promisc":null,"mtu":1450,"allmulti":null,"txQLen":null,"sysctl":null`,
		Invalid: []string{`"mtu":"x"`, `"mtu":-1`, `"mtu":4294967297`, `"txQLen":-1`, `"promisc":1`, `"sysctl":[]`, `"sysctl":{"net.ipv4.x":[]}`,
			`"sysctl":{"kernel.panic":"1"}`, `"sysctl":{"net/../kernel/panic":"1"}`,
			`"sysctl":{"net.ipv4/../../../kernel/panic":"1"}`, `"sysctl":{"/net/ipv4/ip_forward":"1"}`, `"sysctl":{"net/ipv4/a\u0000b":"1"}`,
			`"mac":"00:00"`, `"mac":5`, `"args":{"cni":{"mtu":"x"}}`},
	},
	"sbr": {
		Keys: `"dataDir":"$DIR/sbr","gateways":["10.1.0.1"]`, After: "bridge", OrAfter: "macvlan", Again: `"table":501`, Ready: secondLink,
		Confs: map[string]string{
			"plain":    Conf("sbr", `"dataDir":"$DIR/sbr"`),
			"gateways": Conf("sbr", `"dataDir":"$DIR/sbr","gateways":["10.1.0.99"]`),
			"hints":    Conf("sbr", `"dataDir":"$DIR/sbr","addSourceHints":true`),
			"table":    Conf("sbr", `"dataDir":"$DIR/sbr","table":500`),
		},
		Invalid: []string{`"table":-1`, `"table":0`, `"table":2147483648`, `"table":"x"`, `"gateways":["x"]`, `"gateways":["10.1.0.1","10.1.0.2"]`, `"gateways":["224.0.0.1"]`, `"gateways":["fe80::1%eth0"]`},
		Except: map[string]string{
			"link and prevResult missing": "it is not recorded which addresses were those of the attachment; a rule is left in the container alone",
		},
	},
	"vrf": {
		Keys: `"dataDir":"$DIR/vrf","vrfname":"blue"`, After: "bridge", OrAfter: "ptp", Ready: HadVRF, Feature: "CONFIG_NET_VRF", Kind: rtnl.VRF{Table: 9},
		Invalid: []string{`"vrfname":"a/b"`, `"vrfname":""`, `"vrfname":".."`, `"vrfname":"longer than a name"`, `"table":255`, `"table":-1`, `"table":2147483648`},
	},
	"tc-redirect-tap": {
		Keys: `"dataDir":"$DIR/taps"`, After: "bridge", OrAfter: "macvlan", Feature: "CONFIG_TUN, CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED", Probe: NeedRedirect,
		Args:    true,
		Confs:   map[string]string{"all keys": Conf("tc-redirect-tap", `"dataDir":"$DIR/taps","tap_name":"vmtap7","uid":1,"gid":2`)},
		Invalid: []string{`"tap_name":"a/b"`, `"tap_name":"longer than a name"`, `"tap_name":1`, `"uid":-1`, `"uid":"root"`, `"gid":4294967295`, `"gid":1.5`},
	},
}

// dropLinks returns a TakeAway that deletes links.
func dropLinks(names ...string) func(*Host) {
	return func(h *Host) {
		h.Helper()
		for _, name := range names {
			h.DropLink(name)
		}
	}
}

// Conf is a configuration of network demo with a plugin's own keys.
func Conf(plugin, keys string) string {
	return `{"cniVersion":"1.1.0","name":"demo","type":"` + plugin + `",` + keys + `}`
}

// child completes the entry of a plugin whose link has no part on the host.
func child(name string, p Plugin) Plugin {
	p.Child, p.Prepare = true, func(h *Host) { h.Segment() }
	if p.Single == nil {
		p.Single = map[string]string{}
	}
	p.Single["keys"] = ChildConf(name, p.Keys)
	return p
}

// ChildConf returns a configuration for a host with [Host.Segment]. Its addresses are IPv4, without
// duplicate address detection.
func ChildConf(plugin, keys string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":%q,%s}`, plugin, join(keys,
		`"ipam":{"type":"host-local","dataDir":"$DIR","resolvConf":"$DIR/resolv.conf",
		"subnet":"10.1.0.0/24","routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.1","mtu":1300}]}`))
}

// Children are the plugins whose link has no part on the host.
func Children() (names []string) {
	for name, p := range Plugins {
		if p.Child {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// FlannelConf is a flannel network for a host with [Host.SubnetEnv].
const FlannelConf = `{"cniVersion":"1.1.0","name":"demo","type":"flannel","subnetFile":"$DIR/subnet.env","dataDir":"$DIR/flannel",
	"delegate":{"bridge":"br0","isDefaultGateway":true,"hairpinMode":true},"ipam":{"dataDir":"$DIR"}}`

// SubnetEnv writes $DIR/subnet.env, as flanneld does.
func (h *Host) SubnetEnv() {
	h.Helper()
	const env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/56\n" +
		"FLANNEL_IPV6_SUBNET=fd00:10:244:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	h.NoError(os.WriteFile(filepath.Join(h.Dir, "subnet.env"), []byte(env), 0o600))
}

// DeviceKeys are keys of host-device, without the one that selects the device.
const DeviceKeys = `"dataDir":"$DIR/records","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}`

// DeviceConf returns a network with a device.
func DeviceConf(device string) string {
	return Conf("host-device", `"device":"`+device+`",`+DeviceKeys)
}

// NIC adds a link in place of a network card: one end of a veth pair, with an alias. The peer,
// wire-NAME, is up.
func (h *Host) NIC(name string) *rtnl.Link {
	h.Helper()
	c := kerneltest.Dial(h.T, h.NS)
	addr, _ := net.ParseMAC("02:00:00:00:00:0" + name[len(name)-1:])
	h.NoError(c.AddLink(rtnl.LinkSpec{Name: name, MAC: addr, MTU: 1450, Up: true,
		Peer: &rtnl.LinkSpec{Name: "wire-" + name}}))
	h.NoError(c.Do(rtnl.ChangeLink(kerneltest.Link(h.T, c, "wire-"+name).Index, rtnl.LinkChange{Up: new(true)}),
		rtnl.ChangeLink(kerneltest.Link(h.T, c, name).Index, rtnl.LinkChange{Alias: new("uplink of " + name)})))
	return kerneltest.Link(h.T, c, name)
}

// cards adds nic0, card1 and card2. card1 and card2 have no settings that are lost without a
// record.
func cards(h *Host) {
	h.Helper()
	h.NIC("nic0")
	c := kerneltest.Dial(h.T, h.NS)
	for _, n := range []string{"1", "2"} {
		h.NoError(c.AddLink(rtnl.LinkSpec{Name: "card" + n, Peer: &rtnl.LinkSpec{Name: "wire" + n}}))
	}
}

// secondLink adds a link with an address in the subnet from which bridge leases. sbr must not
// change its routes.
func secondLink(t *testing.T, c Container) {
	t.Helper()
	kerneltest.Brief(t, c.NS, func(conn *rtnl.Conn) error {
		l, err := conn.CreateLink(rtnl.LinkSpec{Name: "eth1", Up: true, Peer: &rtnl.LinkSpec{Name: "peer1", Up: true}})
		for _, addr := range []string{"10.1.0.200/24", "fd00:1::200/64"} {
			if err == nil {
				err = conn.AddAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix(addr), NoDAD: true})
			}
		}
		return err
	})
}

// HadVRF adds the rules that the kernel adds with the first VRF of a namespace and never deletes.
func HadVRF(t *testing.T, c Container) {
	t.Helper()
	kerneltest.Brief(t, c.NS, func(conn *rtnl.Conn) error {
		kerneltest.Need(t, "CONFIG_NET_VRF", func() error {
			return conn.AddLink(rtnl.LinkSpec{Name: "first", Kind: rtnl.VRF{Table: 9}})
		})
		return conn.DelLink("first")
	})
}

// NeedBridge skips the test if the kernel has no bridges.
func NeedBridge(t testing.TB) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{}})
	})
}

// NeedTap skips the test if the kernel has no taps.
func NeedTap(t testing.TB) {
	t.Helper()
	kerneltest.Need(t, "CONFIG_TUN", rtnl.ProbeTap)
}

// NeedRedirect skips the test if the kernel lacks an option that tc-redirect-tap needs.
func NeedRedirect(t testing.TB) {
	t.Helper()
	NeedTap(t)
	kerneltest.Need(t, "CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED", func() error {
		c := kerneltest.Dial(t, kerneltest.NS(t))
		lo := kerneltest.Link(t, c, "lo").Index
		return c.Do(rtnl.NewIngress(lo), rtnl.NewRedirect(lo, lo))
	})
}

// NeedShaping skips the test if the kernel lacks an option that bandwidth needs.
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

// rareFeatures are options that the kernels outside the guests may lack.
var rareFeatures = []string{"CONFIG_DUMMY", "CONFIG_IPVLAN", "CONFIG_VLAN_8021Q", "CONFIG_NET_VRF"}

// Elsewhere reports whether the test runs in a guest of make test-vm for a plugin that needs no
// guest. Tests with many calls skip it there, since they take a tenth of the time outside.
func Elsewhere(plugin string) bool {
	return kerneltest.Guest() && !slices.Contains(rareFeatures, Plugins[plugin].Feature)
}
