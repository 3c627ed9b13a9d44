package applets_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// Each chained plugin reports its resources of an attachment, as text and as data.
func TestChainedPluginsReportResources(t *testing.T) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`
	for plugin, tt := range map[string]struct {
		keys string
		want []string
		data string // of the first resource; "": not compared
	}{
		"vrf":       {`"vrfname":"blue","table":7`, []string{"in VRF blue with table 7"}, `"blue"`},
		"sbr":       {`"table":500`, []string{"rule from 10.1.0.2 to table 500"}, `"10.1.0.2"`},
		"tuning":    {`"mac":"02:00:00:00:00:AA","mtu":1400,"sysctl":{"net.core.somaxconn":"5"}`, []string{"net.core.somaxconn = 5", "mac 02:00:00:00:00:AA, mtu 1400"}, ""},
		"bandwidth": {`"egressRate":8000000,"egressBurst":800000`, []string{"egress limited to 8000000 bit/s, burst 800000 bits"}, `{"burst":800000,"direction":"egress","rate":8000000}`},
		"portmap":   {`"runtimeConfig":{"portMappings":[{"hostPort":53,"containerPort":5353,"protocol":"udp"}]}`, []string{"udp * port 53 leads to port 5353"}, `{"hostPort":53,"containerPort":5353,"protocol":"udp"}`},
		"firewall":  {`"ingressPolicy":"isolated"`, []string{"10.1.0.2 accepted", "ingress policy isolated"}, `"10.1.0.2"`},
		"tc-redirect-tap": {`"prevResult":{"interfaces":[{"name":"tap0","sandbox":"/x"},{"name":"tap0","sandbox":"c1","mac":"02:00:00:00:00:07"}]},"tap_name":"other"`,
			[]string{"tap tap0 in place of eth0, MAC 02:00:00:00:00:07"}, `{"mac":"02:00:00:00:00:07","tap":"tap0"}`},
	} {
		verbs, ok := applets.All().Plugin(plugin)
		if !ok {
			continue // excluded by a build tag
		}
		keys := tt.keys
		if !strings.Contains(keys, "prevResult") {
			keys += "," + prev
		}
		r := spectest.Request(t, spec.Check, "{"+keys+"}", "")
		held, err := verbs.Holds(t.Context(), r)
		var got []string
		for _, h := range held {
			got = append(got, h.Text)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q (%v), want %q", plugin, got, err, tt.want)
			continue
		}
		if b, _ := json.Marshal(held[0].Data); tt.data != "" && string(b) != tt.data {
			t.Errorf("%s: got %s, want %s", plugin, b, tt.data)
		}
	}
}

// Tools get the resources that a list uses from its plugins. An invalid configuration of one does
// not hide stored resources.
func TestResourcesOfList(t *testing.T) {
	d := chain.NewDescriber(applets.All().Plugin, "/state")
	u := d.Uses([]byte(`{"cniVersion":"0.4.0","name":"n","plugins":[
		{"type":"bridge","bridge":"br7","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00::/64"}]]}},
		{"type":"tuning","dataDir":"/elsewhere"},{"type":"sbr"},{"type":"firewall","backend":"firewalld"}]}`))
	if len(u.Stored) != 4 || len(u.Ranges) != 3 {
		t.Skip("SKIPPED: plugins are left out of this build")
	}
	if u.Link != "br7" || !u.Routed || !u.Veth || u.Accepts || !u.Zoned {
		t.Errorf("got %+v", u)
	}
	for backend, want := range map[string]bool{"": true, "iptables": true, "nftables": false, "firewalld": false} {
		u := d.Uses([]byte(`{"cniVersion":"0.4.0","name":"n","type":"firewall","backend":"` + backend + `"}`))
		if u.Accepts != want {
			t.Errorf("backend %q: CNI-FORWARD accepts: %t, want %t", backend, u.Accepts, want)
		}
	}
	if u.Ranges[0].Set != 0 || u.Ranges[1].Set != 0 || u.Ranges[2].Set != 1 {
		t.Errorf("sets: %+v", u.Ranges)
	}
	if u.Leases() != "/state/networks" || u.Stored[1].Records["tuning"] != "/elsewhere" || u.Stored[2].Records["sbr"] != "/state/sbr" {
		t.Errorf("stored: %+v", u.Stored)
	}
	u = d.Uses([]byte(`{"name":"n","type":"macvlan","mode":"wrong","ipam":{"type":"host-local","dataDir":"/leases","subnet":3}}`))
	if u.Veth || u.Accepts || len(u.Ranges) > 0 || u.Leases() != "/leases" {
		t.Errorf("invalid: got %+v", u)
	}
}
