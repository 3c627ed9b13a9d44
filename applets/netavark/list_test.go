package netavark

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// Members of the list that options of a network lead to.
func TestList(t *testing.T) {
	for name, tt := range map[string]struct {
		network    string
		has, lacks []string
	}{
		"plain": {`{}`, []string{`"isGateway":true`, `"ipMasq":true`, `"dst":"0.0.0.0/0","gw":"10.1.0.1"`, `"portmap"`, `"firewall"`}, []string{"mtu", "vlan", "priority", "bandwidth", "ingressPolicy"}},
		"options": {`{"options":{"mtu":"1400","metric":"7","isolate":"strict","bandwidth":"10M"}}`,
			[]string{`"mtu":1400`, `"priority":7`, `"ingressPolicy":"same-bridge"`, `"egressRate":10000000`, `"egressBurst":1000000`}, nil},
		"vlan":      {`{"options":{"vlan":"100"}}`, []string{`"vlan":100`, `"isGateway":false`, `"ipMasq":false`, `"dst":"0.0.0.0/0"`}, []string{"portmap", "firewall"}},
		"unmanaged": {`{"options":{"mode":"unmanaged"}}`, []string{`"isGateway":false`, `"ipMasq":false`}, []string{"portmap"}},
		"internal":  {`{"internal":true}`, []string{`"ipMasq":false`, `"routes":[]`}, nil},
		"no routes": {`{"options":{"no_default_route":"1"},"routes":[{"destination":"10.9.0.0/16","gateway":"10.1.0.9","metric":3}]}`,
			[]string{`"dst":"10.9.0.0/16","gw":"10.1.0.9","priority":3`, `"ipMasq":true`}, []string{"0.0.0.0/0"}},
	} {
		var n network
		if err := json.Unmarshal([]byte(tt.network), &n); err != nil {
			t.Fatal(err)
		}
		o, err := n.readOptions()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		doc, err := json.Marshal(n.list(o, []address{{netip.MustParsePrefix("10.1.0.5/24"), "10.1.0.1"}}))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tt.has {
			if !strings.Contains(string(doc), want) {
				t.Errorf("%s: no %s in %s", name, want, doc)
			}
		}
		for _, other := range tt.lacks {
			if strings.Contains(string(doc), other) {
				t.Errorf("%s: %s in %s", name, other, doc)
			}
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	for _, options := range []string{
		`{"mtu":"-1"}`, `{"mtu":"x"}`, `{"vlan":"4095"}`, `{"metric":""}`, `{"isolate":"maybe"}`, `{"mode":"auto"}`, `{"bandwidth":"0"}`,
		`{"bandwidth":"10T"}`, `{"bandwidth":"4294967295G"}`, `{"network":"a/b"}`, `{"network":"a","mtu":"1400"}`, `{"parent":"eth0"}`,
	} {
		var n network
		if err := json.Unmarshal([]byte(`{"options":`+options+`}`), &n); err != nil {
			t.Fatal(err)
		}
		if o, err := n.readOptions(); err == nil {
			t.Errorf("%s: %+v", options, o)
		}
	}
}
