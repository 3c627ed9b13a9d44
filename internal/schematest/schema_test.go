package schematest

import (
	"fmt"
	"strings"
	"testing"
)

// The example of the schema for results.
const seedResult = `{ "cniVersion": "1.0.0", "interfaces": [ { "name": "cni0", "mac": "0a:58:0a:f4:00:01", "sandbox": "" },
	{ "name": "veth1a2b3c4d", "mac": "0a:58:0a:f4:00:02", "sandbox": "" },
	{ "name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": "/proc/12345/ns/net" } ],
	"ips": [ { "address": "10.244.0.5/24", "gateway": "10.244.0.1", "interface": 2 } ],
	"routes": [ { "dst": "0.0.0.0/0", "gw": "10.244.0.1" } ],
	"dns": { "nameservers": ["10.96.0.10"], "search": [ "default.svc.cluster.local", "svc.cluster.local", "cluster.local" ], "options": ["ndots:5"] } }`

func TestCheckResult(t *testing.T) {
	tests := map[string]string{ // document without its cniVersion to problems
		`{}`: "",
		`{"interfaces":[{"name":"a","mac":"0A:58:0a:f4:00:01","mtu":68}],"ips":[{"address":"10.0.0.1/8","interface":0}]}`: "",
		`{"interfaces":null}`:                                       "interfaces: is null, not array",
		`{"interfaces":[{"mac":"0a:58"}]}`:                          `interfaces[0]: "name" is missing, interfaces[0].mac: "0a:58" is not six octets in hexadecimal with colons between them`,
		`{"interfaces":[{"name":"lo","mtu":65536}]}`:                "interfaces[0].mtu: 65536 is out of bounds (least 68, most 65535)",
		`{"interfaces":[{"name":"lo","mtu":68.5}]}`:                 "interfaces[0].mtu: is number, not integer",
		`{"interfaces":[{"name":"lo","mtu":68.0,"sandbox":true}]}`:  "interfaces[0].sandbox: is boolean, not string",
		`{"ips":[{"interface":-1}]}`:                                `ips[0]: "address" is missing, ips[0].interface: -1 is out of bounds (least 0, most 0)`,
		`{"ips":[{"address":"10.0.0.1","interface":0}]}`:            `ips[0].address: "10.0.0.1" is not an IP address with a prefix length, ips[0].interface: 0 is outside the list of 0 interfaces`,
		`{"ips":[{"address":"10.0.0.1/8","interface":1e30}]}`:       `ips[0].interface: 1e30 is outside the list of 0 interfaces`,
		`{"routes":[{"gw":"x","mtu":1,"advmss":0}]}`:                `routes[0]: "dst" is missing, routes[0].advmss: 0 is out of bounds (least 1, most 0), routes[0].gw: "x" is not an IP address, routes[0].mtu: 1 is out of bounds (least 68, most 65535)`,
		`{"dns":{"nameservers":["a"],"search":[1],"domain":["a"]}}`: `dns.domain: is array, not string, dns.nameservers[0]: "a" is not an IP address, dns.search[0]: is integer, not string`,
		`{"more":{"is":["allowed",null]}}`:                          "",
	}
	for in, want := range tests {
		t.Run(in, func(t *testing.T) {
			doc := strings.TrimSuffix(strings.Replace(in, "{", `{"cniVersion":"1.0.0",`, 1), ",}")
			if in == "{}" {
				doc = `{"cniVersion":"1.0.0"}`
			}
			if got := lines(CheckResult([]byte(doc))); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	for in, want := range map[string]string{
		`{}`:                      `"cniVersion" is missing`,
		`{"cniVersion":"1.0"}`:    `cniVersion: "1.0" is not three numbers with dots between them`,
		`{"cniVersion":"1.0.0a"}`: `cniVersion: "1.0.0a" is not three numbers with dots between them`,
		`[]`:                      "is array, not object",
		`{`:                       "not JSON: unexpected end of JSON input",
		seedResult:                "",
		seedResult + "{}":         "not JSON: invalid character '{' after top-level value",
	} {
		if got := lines(CheckResult([]byte(in))); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

func lines(problems []Problem) string {
	var s []string
	for _, p := range problems {
		s = append(s, fmt.Sprint(p))
	}
	return strings.Join(s, ", ")
}
