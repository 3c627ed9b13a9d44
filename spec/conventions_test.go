package spec

import (
	"reflect"
	"strings"
	"testing"
)

// The capability dns replaces the dns of the configuration, in both documented forms and with
// containerd's capital letters, unless it is empty.
func TestCapabilityDNS(t *testing.T) {
	conf := DNS{Nameservers: []string{"10.0.0.1"}, Domain: "conf"}
	asked := DNS{Nameservers: []string{"10.0.0.2", "fd00::2"}, Search: []string{"a.example", "b.example"}, Options: []string{"ndots:5"}}
	for _, tt := range []struct {
		dns  string
		want DNS
	}{
		{`{"nameservers":["10.0.0.2","fd00::2"],"search":["a.example","b.example"],"options":["ndots:5"]}`, asked},
		{`{"servers":["10.0.0.2","fd00::2"],"searches":["a.example","b.example"],"options":["ndots:5"]}`, asked},
		{`{"Servers":["10.0.0.2","fd00::2"],"Searches":["a.example","b.example"],"Options":["ndots:5"]}`, asked},
		{`{"servers":["10.0.0.9"],"nameservers":["10.0.0.2"],"domain":"d"}`, DNS{Nameservers: []string{"10.0.0.2"}, Domain: "d"}},
		{`{"Servers":null,"Searches":null,"Options":null}`, conf},
		{`{"servers":[],"searches":[]}`, conf},
		{`{}`, conf},
		{`null`, conf},
	} {
		for _, verb := range []Verb{Add, Get, Del} {
			r := request(t, verb, `{"name":"n","cniVersion":"1.0.0","dns":{"nameservers":["10.0.0.1"],"domain":"conf"},"runtimeConfig":{"dns":`+tt.dns+`}}`)
			if !reflect.DeepEqual(r.Net.DNS, tt.want) {
				t.Errorf("%s: got %+v, want %+v", tt.dns, r.Net.DNS, tt.want)
			}
		}
	}
	for _, tt := range []struct{ member, text string }{
		{`{"dns":[]}`, `"runtimeConfig.dns" is an array where an object is expected`},
		{`{"dns":{"servers":["ns.example"]}}`, `runtimeConfig.dns.servers[0]: "ns.example" is not an IP address`},
		{`{"dns":{"searches":"a.example"}}`, `"runtimeConfig.dns.searches" is a string where an array is expected`},
		{`[]`, `"runtimeConfig" is an array where an object is expected`},
	} {
		_, err := newRequest(Add, `{"name":"n","runtimeConfig":`+tt.member+`}`)
		wantError(t, err, CodeConfig, tt.text)
		if _, err := newRequest(Del, `{"name":"n","runtimeConfig":`+tt.member+`}`); err != nil {
			t.Error(err)
		}
	}
}

// A plugin ignores members of args.cni that other plugins read, even of another type.
func TestArgsOfOtherPlugins(t *testing.T) {
	for _, args := range []string{
		`5`, `null`, `{"cni":[]}`, `{"podman_labels":5,"cni":null}`,
		`{"cni":{"labels":{"app":"web"}}}`, `{"cni":{"labels":[{"key":"app","value":1}]}}`,
		`{"cni":{"aliases":"web"}}`, `{"cni":{"aliases":{"net":[1]}}}`, `{"cni":{"disable-check":"yes"}}`,
		`{"cni":{"ips":"10.1.0.2","mac":5}}`,
	} {
		for _, verb := range []Verb{Add, Check, Del} {
			if _, err := newRequest(verb, `{"cniVersion":"1.0.0","name":"n","args":`+args+`}`); err != nil {
				t.Errorf("%s: %s: %v", verb, args, err)
			}
		}
	}
}

// A network name has at most 200 bytes, as in the schema. DEL and GC accept a longer one, which an
// earlier release may have attached.
func TestNetworkNameLength(t *testing.T) {
	for n, verbs := range map[int]map[Verb]bool{
		200: {Add: true, Check: true, Get: true, Status: true, GC: true, Del: true},
		201: {GC: true, Del: true}, 255: {GC: true, Del: true},
	} {
		for _, verb := range []Verb{Add, Check, Get, Status, GC, Del} {
			r, err := newRequest(verb, `{"cniVersion":"1.1.0","name":"`+strings.Repeat("n", n)+`","cni.dev/valid-attachments":[]}`)
			if verbs[verb] {
				if err != nil || len(r.Network) != n {
					t.Errorf("%s of %d bytes: %v", verb, n, err)
				}
				continue
			}
			wantError(t, err, CodeConfig, "network name is too long; 200 bytes at most")
		}
	}
}
