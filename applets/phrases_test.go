package applets_test

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// The errors whose text the tests of the reference compare, or that scripts search for. The phrase
// is the whole "msg"; "details" has the key and the remedy, which cnibox adds. Other tests compare
// only codes. The messages that users see most often are in test/messages.
func TestKernelReferencePhrases(t *testing.T) {
	const (
		oneFamily = `CNI version 0.2.0 does not support more than 1 address per family`
		trunkPair = `minID and maxID should be configured simultaneously, `
		chained   = `must be called as chained plugin`
		pair      = `"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.3.0/24"}]]`
		onEth0    = `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}`
	)
	tests := []struct {
		plugin, keys string    // members of the configuration; $( ) encloses members of "ipam"
		msg, details string    // details: part
		args         string    // CNI_ARGS
		version      string    // "": 1.1.0
		verb         spec.Verb // "": ADD
		code         int       // 0: 7
	}{
		{plugin: "static", keys: `$()`, args: "IP=10.10.0.1", code: 4, msg: `the 'ip' field is expected to be in CIDR notation, got: '10.10.0.1'`, details: "CNI_ARGS"},
		{plugin: "static", keys: `$(),"args":{"cni":{"ips":["10.10.0.1"]}}`, msg: `an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1'`, details: "args.cni.ips[0]"},
		{plugin: "static", keys: `$(),"runtimeConfig":{"ips":["10.1.0.5/24","10.10.0.1"]}`, msg: `an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1'`, details: "runtimeConfig.ips[1]"},
		{plugin: "static", keys: `$()`, args: "IP=10.1.0.5/24;GATEWAY=x", code: 4, msg: `invalid gateway address: x`, details: "CNI_ARGS"},
		{plugin: "static", version: "0.2.0", keys: `$("addresses":[{"address":"10.1.0.1/24"},{"address":"10.1.0.2/24"}])`, msg: oneFamily},
		{plugin: "static", keys: ``, msg: `IPAM config missing 'ipam' key`},

		{plugin: "host-local", keys: `$("subnet":"10.1.2.0/24")`, args: "IP=10.1.2.1", msg: `failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway`},
		{plugin: "host-local", keys: `$("subnet":"192.0.2.0/24","rangeEnd":"192.0.4.0")`, msg: `invalid range set 0: RangeEnd 192.0.4.0 not in network 192.0.2.0/24`},
		{plugin: "host-local", keys: `$("subnet":"192.0.2.0/24","rangeStart":"192.0.2.50","rangeEnd":"192.0.2.40")`, msg: `invalid range set 0: RangeStart 192.0.2.50 is after RangeEnd 192.0.2.40`, details: `"ipam.rangeStart"`},
		{plugin: "host-local", keys: `$("ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"10.1.2.0/24"}]])`, msg: `range set 0 overlaps with 1`},
		{plugin: "host-local", keys: `$("ranges":[[{"subnet":"10.1.0.0/22"},{"subnet":"10.1.2.0/24"}]])`, msg: `invalid range set 0: subnets 10.1.0.1-10.1.3.254 and 10.1.2.1-10.1.2.254 overlap`},
		{plugin: "host-local", keys: `$("ranges":[[{"subnet":"10.1.0.0/22"},{"subnet":"fd00::/64"}]])`, msg: `invalid range set 0: mixed address families`},
		{plugin: "host-local", version: "0.2.0", keys: `$(` + pair + `)`, msg: oneFamily},
		{plugin: "host-local", verb: spec.Check, keys: `$("subnet":"10.9.0.0/30")` + onEth0, code: 102, msg: `host-local: Failed to find address added by container c1`},
		{plugin: "host-local", keys: ``, msg: `IPAM config missing 'ipam' key`},

		{plugin: "vlan", keys: `"master":"up0","vlanId":5,"mtu":1501,$("type":"static")`, msg: `invalid MTU 1501, must be [0, master MTU(1500)]`, details: "up0"},
		{plugin: "vlan", keys: `"master":"up0","vlanId":5,"mtu":-1,$("type":"static")`, msg: `invalid MTU -1, must be [0, master MTU(1500)]`, details: `"mtu"`},
		{plugin: "ipvlan", keys: `"master":"up0","mtu":1501,$("type":"static")`, msg: `invalid MTU 1501, must be [0, master MTU(1500)]`, details: "up0"},
		{plugin: "vlan", verb: spec.Check, version: "0.3.1", keys: `"master":"up0","vlanId":5`, code: 1, msg: `config version does not allow CHECK`},
		{plugin: "macvlan", version: "0.2.0", keys: `"master":"up0"`, msg: `cannot convert: no valid IP addresses`, details: "0.2.0"},
		{plugin: "bridge", version: "0.1.0", keys: ``, msg: `cannot convert: no valid IP addresses`, details: "0.1.0"},
		{plugin: "bridge", keys: `"vlanTrunk":[{"minID":5}]`, msg: trunkPair + `maxID is missing`},
		{plugin: "bridge", keys: `"vlanTrunk":[{"maxID":5}]`, msg: trunkPair + `minID is missing`},
		{plugin: "bridge", keys: `"vlanTrunk":[{"minID":-5,"maxID":9}]`, msg: `incorrect trunk minID parameter`, details: "-5"},
		{plugin: "bridge", keys: `"vlanTrunk":[{"minID":5,"maxID":4095}]`, msg: `incorrect trunk maxID parameter`, details: "4095"},
		{plugin: "bridge", keys: `"vlanTrunk":[{"id":4095}]`, msg: `incorrect trunk id parameter`, details: "4095"},
		{plugin: "bridge", keys: `"vlanTrunk":[{"minID":9,"maxID":5}]`, msg: `minID is greater than maxID in trunk parameter`, details: "9"},
		{plugin: "host-device", keys: `"runtimeConfig":{"deviceID":"0000:ff:1f.7"}`, msg: `runtime config DeviceID 0000:ff:1f.7 not found or unsupported`, details: "PCI"},

		{plugin: "bandwidth", keys: `"egressRate":8,"egressBurst":34359738360` + onEth0, msg: `burst cannot be more than 4GB`, details: "egressBurst"},
		{plugin: "bandwidth", keys: ``, msg: chained, details: "eth0"},
		{plugin: "vrf", keys: `"vrfname":"blue"`, msg: "missing prevResult from earlier plugin", details: "eth0"},
		{plugin: "tuning", keys: ``, msg: chained, details: "eth0"},
		{plugin: "firewall", keys: ``, msg: "missing prevResult from earlier plugin", details: "eth0"},
		{plugin: "sbr", keys: ``, msg: "This plugin must be called as chained plugin", details: "eth0"},
		{plugin: "sbr", keys: onEth0[1:], msg: `No IP addresses supplied on interface: eth0`},
		{plugin: "portmap", keys: `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`, msg: chained},
	}
	ipamKeys := strings.NewReplacer("$()", `"ipam":{"dataDir":"$DIR"}`, "$(", `"ipam":{"dataDir":"$DIR",`, ")", "}")
	h := applettest.NewHost(t)
	p := h.Container("c1")
	kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "up1"}})
	h.Must(spec.Add, "host-local", `{"cniVersion":"1.1.0","name":"demo","ipam":{"type":"host-local","subnet":"10.9.0.0/30","dataDir":"$DIR"}}`, applettest.Container{ID: "other", Path: p.Path})
	for _, tt := range tests {
		conf := `{"cniVersion":"` + cmp.Or(tt.version, "1.1.0") + `","name":"demo","type":"` + tt.plugin + `"`
		if tt.keys != "" {
			conf += "," + ipamKeys.Replace(tt.keys)
		}
		verb := cmp.Or(tt.verb, spec.Add)
		code, out := h.Call(verb, tt.plugin, conf+"}", p, "CNI_ARGS="+tt.args)
		var e struct{ Msg, Details string }
		if err := json.Unmarshal([]byte(out), &e); code != cmp.Or(tt.code, spec.CodeConfig) || err != nil || e.Msg != tt.msg || !strings.Contains(e.Details, tt.details) {
			t.Errorf("%s %s with %s %s: code %d\nmsg     %q\nwant    %q\ndetails %q, want %q", verb, tt.plugin, tt.keys, tt.args, code, e.Msg, tt.msg, e.Details, tt.details)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.Dir, "demo", "1*")); len(left) != 1 {
		t.Errorf("leases after errors: %v", left)
	}
}
