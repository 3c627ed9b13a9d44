package spec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParseResultErrors(t *testing.T) {
	tests := map[string]struct {
		in   string
		code int
		text string
	}{
		"empty":             {``, CodeDecode, "unexpected end"},
		"null":              {`null`, CodeDecode, "null where an object is expected"},
		"list":              {`[]`, CodeDecode, "an array"},
		"two":               {`{}{}`, CodeDecode, "after top-level value"},
		"version":           {`{"cniVersion":"2.0.0"}`, CodeConfig, `unsupported CNI result version "2.0.0"`},
		"short version":     {`{"cniVersion":"1.0"}`, CodeConfig, `unsupported CNI result version "1.0"`},
		"numeric version":   {`{"cniVersion":1}`, CodeConfig, `"cniVersion"`},
		"interfaces":        {`{"interfaces":{}}`, CodeConfig, `"interfaces" is an object where an array is expected`},
		"null interface":    {`{"interfaces":[null]}`, CodeConfig, "interfaces[0]: null where an object is expected"},
		"null address":      {`{"ips":[null]}`, CodeConfig, "ips[0]: null"},
		"null route":        {`{"routes":[{"dst":"::/0"},null]}`, CodeConfig, "routes[1]: null"},
		"null nameserver":   {`{"dns":{"nameservers":[null]}}`, CodeConfig, `dns.nameservers[0]: "" is not an IP address`},
		"mac":               {`{"interfaces":[{"name":"a","mac":1}]}`, CodeConfig, `"interfaces[0].mac" is a number where a string is expected`},
		"negative mtu":      {`{"interfaces":[{"name":"a","mtu":-1}]}`, CodeConfig, "interfaces[0].mtu: -1 is not an integer"},
		"mtu in words":      {`{"interfaces":[{"name":"a","mtu":"1"}]}`, CodeConfig, `"interfaces[0].mtu" is a string where an integer is expected`},
		"index":             {`{"interfaces":[{"name":"a"}],"ips":[{"address":"1.1.1.1/8","interface":1}]}`, CodeConfig, "ips[0].interface: 1 is outside the list of 1 interfaces"},
		"index -2":          {`{"ips":[{"address":"1.1.1.1/8","interface":-2}]}`, CodeConfig, "ips[0].interface: -2"},
		"huge index":        {`{"ips":[{"address":"1.1.1.1/8","interface":18446744073709551616}]}`, CodeConfig, `"ips[0].interface" is a number 18446744073709551616 where an integer is expected`},
		"no address":        {`{"ips":[{}]}`, CodeConfig, "ips[0].address: missing"},
		"empty address":     {`{"ips":[{"address":""}]}`, CodeConfig, "ips[0].address: missing"},
		"bare address":      {`{"ips":[{"address":"10.0.0.1"}]}`, CodeConfig, `"ips[0].address": "10.0.0.1" is not an IP address with a prefix length`},
		"leading zero":      {`{"ips":[{"address":"10.0.0.01/8"}]}`, CodeConfig, `"ips[0].address": "10.0.0.01/8" is not`},
		"zone":              {`{"ips":[{"address":"fe80::1%eth0/64"}]}`, CodeConfig, `"ips[0].address": "fe80::1%eth0/64" is not`},
		"wide mapped":       {`{"ips":[{"address":"::ffff:1.2.3.4/64"}]}`, CodeConfig, "wider than all IPv4"},
		"gateway":           {`{"ips":[{"address":"10.0.0.1/8","gateway":"10.0.0.256"}]}`, CodeConfig, `"ips[0].gateway": "10.0.0.256" is not an IP address`},
		"gateway with zone": {`{"ips":[{"address":"fe80::1/64","gateway":"fe80::2%a"}]}`, CodeConfig, `ips[0].gateway: "fe80::2%a" is not an IP address`},
		"no dst":            {`{"routes":[{"gw":"10.0.0.1"}]}`, CodeConfig, "routes[0].dst: missing"},
		"default":           {`{"routes":[{"dst":"default"}]}`, CodeConfig, `"routes[0].dst": "default" is not a network address with a prefix length`},
		"table":             {`{"routes":[{"dst":"::/0","table":-5}]}`, CodeConfig, "routes[0].table: -5"},
		"scope":             {`{"routes":[{"dst":"::/0","scope":300}]}`, CodeConfig, "routes[0].scope: 300 is not a scope"},
		"ip4":               {`{"ip4":[]}`, CodeConfig, `"ip4" is an array where an object is expected`},
		"ip4 address":       {`{"ip4":{}}`, CodeConfig, "ip4.ip: missing"},
		"ip4 route":         {`{"ip4":{"ip":"1.1.1.1/8","routes":[{"dst":"x"}]}}`, CodeConfig, `"ip4.routes[0].dst": "x" is not`},
		"deep":              {`{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, CodeDecode, "nested deeper"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseResult([]byte(tt.in), V110)
			wantError(t, err, tt.code, tt.text)
		})
	}
}

// A clone is equal, and shares no memory that can be changed.
func TestClone(t *testing.T) {
	in := strings.Replace(richD, `"V"`, `"1.1.0"`, 1)
	in = strings.TrimSuffix(in, "}") + `,"x":1,"dns":{"nameservers":["::1"],"search":["b"],"options":["c"],"y":1}}`
	r, err := ParseResult([]byte(in), V110)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := r.Encode(V110)
	c := r.Clone()
	if !reflect.DeepEqual(r, c) {
		t.Errorf("got %+v, want %+v", c, r)
	}
	c.Interfaces[0].Name, *c.IPs[0].Interface, *c.Routes[1].Table, *c.Routes[1].Scope = "changed", 0, 1, 1
	c.DNS.Nameservers[0], c.DNS.Search[0], c.DNS.Options[0] = "changed", "changed", "changed"
	c.extra["x"], c.DNS.extra["y"] = json.RawMessage("2"), json.RawMessage("2")
	if after, _ := r.Encode(V110); string(after) != string(before) {
		t.Errorf("the original changed: %s", after)
	}
	if (*Result)(nil).Clone() != nil {
		t.Error("a result out of nothing")
	}
}

func BenchmarkParseResult(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseResult([]byte(seedResult), V100); err != nil {
			b.Fatal(err)
		}
	}
}
