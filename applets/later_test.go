package applets_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// addLater adds to a result what a later plugin may have added to eth0: an address with a gateway,
// and a route.
func addLater(t *testing.T, result string) string {
	t.Helper()
	var res map[string]any
	if err := json.Unmarshal([]byte(result), &res); err != nil {
		t.Fatal(err)
	}
	ips, _ := res["ips"].([]any)
	routes, _ := res["routes"].([]any)
	index := ips[0].(map[string]any)["interface"]
	res["ips"] = append(ips, map[string]any{"address": "10.77.0.5/24", "gateway": "10.77.0.1", "interface": index},
		map[string]any{"address": "10.77.0.6/24"})
	res["routes"] = append(routes, map[string]any{"dst": "10.78.0.0/16", "gw": "10.77.0.1"})
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a later plugin has added to the result is no fault, whether or not the interface has it. What
// the plugin itself has made is missed as before.
func TestKernelCheckOfLaterAddresses(t *testing.T) {
	const ranges = `"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"10.9.0.0/16"}]}`
	for name, chain := range map[string][]string{
		"gateway":         {applettest.Conf("bridge", `"bridge":"br0","isGateway":true,`+ranges)},
		"default gateway": {applettest.Conf("bridge", `"bridge":"br0","isDefaultGateway":true,`+ranges)},
		"masquerade":      {applettest.Conf("bridge", `"bridge":"br0","ipMasq":true,`+ranges)},
		"static": {applettest.Conf("bridge", `"bridge":"br0","isGateway":true,"ipMasq":true,
			"ipam":{"type":"static","addresses":[{"address":"10.1.0.2/24"},{"address":"fd00:1::2/64"}],"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.1"}]}`)},
		"ptp":      {applettest.Conf("ptp", `"ipMasq":true,`+ranges)},
		"firewall": {applettest.Conf("bridge", `"bridge":"br0",`+ranges), applettest.Conf("firewall", `"dataDir":"$DIR/firewall"`)},
		"sbr":      {applettest.Conf("bridge", `"bridge":"br0","isGateway":true,`+ranges), applettest.Conf("sbr", `"dataDir":"$DIR/sbr"`)},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			c := h.Container("a")
			var res string
			for _, conf := range chain {
				if res != "" {
					conf = applettest.Prev(conf, res)
				}
				res = h.Must(spec.Add, typeOf(conf), conf, c)
			}
			later := addLater(t, res)
			all := func(verb spec.Verb) {
				t.Helper()
				for _, conf := range chain {
					h.Must(verb, typeOf(conf), applettest.Prev(conf, later), c)
				}
			}
			all(spec.Check)
			kerneltest.Address(t, c.NS, "eth0", "10.77.0.5/24")
			all(spec.Check)

			kerneltest.Brief(t, c.NS, func(conn *rtnl.Conn) error {
				eth := kerneltest.Link(t, conn, "eth0")
				return conn.Do(rtnl.DropAddr(eth.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("fd00:1::2/64")}))
			})
			if code, out := h.Call(spec.Check, typeOf(chain[0]), applettest.Prev(chain[0], later), c); code != spec.CodeCheck || !strings.Contains(out, "fd00:1::2/64") {
				t.Errorf("without its own address CHECK answers %d %s", code, out)
			}
		})
	}
}

// typeOf returns the plugin of a configuration.
func typeOf(conf string) string {
	_, rest, _ := strings.Cut(conf, `"type":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}
