package schema

import (
	"fmt"
	"strings"
	"testing"
)

// The example of the result schema.
const seedResult = `{ "cniVersion": "1.0.0", "interfaces": [ { "name": "cni0", "mac": "0a:58:0a:f4:00:01", "sandbox": "" },
	{ "name": "veth1a2b3c4d", "mac": "0a:58:0a:f4:00:02", "sandbox": "" },
	{ "name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": "/proc/12345/ns/net" } ],
	"ips": [ { "address": "10.244.0.5/24", "gateway": "10.244.0.1", "interface": 2 } ],
	"routes": [ { "dst": "0.0.0.0/0", "gw": "10.244.0.1" } ],
	"dns": { "nameservers": ["10.96.0.10"], "search": [ "default.svc.cluster.local", "svc.cluster.local", "cluster.local" ], "options": ["ndots:5"] } }`

const seedConf = `{"cniVersion": "1.0.0", "name": "mynet", "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
	"ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
	"dns": {"nameservers": ["10.96.0.10"], "search": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"], "options": ["ndots:5"]}}`

func TestCheckResult(t *testing.T) {
	tests := map[string]string{ // document without its cniVersion to problems, joined
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

func TestCheckConf(t *testing.T) {
	const head = `{"cniVersion":"1.0.0","name":"n","type":"t"`
	tests := map[string]string{
		seedConf: "",
		`{}`:     `"cniVersion" is missing, "name" is missing, "type" is missing`,
		`{"cniVersion":"1.0.0","name":"","type":""}`:                                                                                                                        `name: has 0 characters (least 1, most 200), name: "" is not a letter or digit followed by letters, digits, _, . and -, type: has 0 characters (least 1, most 0)`,
		`{"cniVersion":"1.0.0","name":"` + strings.Repeat("n", 201) + `","type":"t"}`:                                                                                       "name: has 201 characters (least 1, most 200)",
		head + `,"cniVersions":["1.0.0","1.1"],"ipMasq":"yes"}`:                                                                                                             `cniVersions[1]: "1.1" is not three numbers with dots between them, ipMasq: is string, not boolean`,
		head + `,"args":{"cni":{"disable-check":1,"aliases":{"n":["a"],"m":"a"}},"x":1}}`:                                                                                   "args.cni.aliases.m: is string, not array, args.cni.disable-check: is integer, not boolean",
		head + `,"ipam":{"subnet":"10.0.0.0","rangeStart":"fd00::1","ranges":[[{"gateway":"x"}]],"free":1}}`:                                                                `ipam: "type" is missing, ipam.ranges[0][0].gateway: "x" is not an IP address, ipam.subnet: "10.0.0.0" is not an IP address with a prefix length`,
		head + `,"capabilities":{"portMappings":true,"own":"x"}}`:                                                                                                           "capabilities.own: is string, not boolean",
		head + `,"runtimeConfig":{"portMappings":[{"hostPort":0,"protocol":"icmp","hostIP":""},{"containerPort":65536}],"bandwidth":{"ingressRate":-1},"mac":"x","own":1}}`: `runtimeConfig.bandwidth.ingressRate: -1 is out of bounds (least 0, most 9223372036854775807), runtimeConfig.mac: "x" is not six octets in hexadecimal with colons between them, runtimeConfig.portMappings[0]: "containerPort" is missing, runtimeConfig.portMappings[0].protocol: "icmp" is not tcp, udp or sctp, runtimeConfig.portMappings[1].containerPort: 65536 is out of bounds (least 1, most 65535)`,
		head + `,"prevResult":{"ips":[{"address":"10.0.0.1/8","interface":0}]}}`:                                                                                            `prevResult: "cniVersion" is missing, prevResult.ips[0].interface: 0 is outside the list of 0 interfaces`,
		head + `,"prevResult":` + seedResult + `}`:                                                                                                                          "",
	}
	for in, want := range tests {
		if got := lines(CheckConf([]byte(in))); got != want {
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
