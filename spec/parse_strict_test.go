package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A result with values that no kernel or resolver accepts is refused, from any plugin.
func TestParseResultRefusesValues(t *testing.T) {
	for _, tt := range []struct{ doc, text string }{
		{`{"routes":[{"dst":"10.3.0.0/24","gw":"::ffff:10.1.0.1"}]}`, ""},
		{`{"ips":[{"address":"::ffff:10.1.0.2/120","gateway":"10.1.0.1"},{"address":"fd00::2/64","gateway":""}]}`, ""},
		{`{"interfaces":[{"name":"eth0"},{"mac":"02:00:00:00:00:01"}]}`, "interfaces[1].name: missing"},
		{`{"interfaces":[{"name":"","sandbox":"/run/netns/a"}]}`, "interfaces[0].name: missing"},
		{`{"routes":[{"dst":"::/0","gw":""}]}`, ""},
		{`{"routes":[{"dst":"::/0","mtu":67}]}`, "routes[0].mtu: 67 is not within 68 to 65535"},
		{`{"routes":[{"dst":"::/0","mtu":65536}]}`, "routes[0].mtu: 65536 is not within 68 to 65535"},
		{`{"routes":[{"dst":"::/0","mtu":68},{"dst":"::/0","mtu":65535},{"dst":"::/0","mtu":0}]}`, ""},
		{`{"dns":{"nameservers":["10.0.0.1","fd00::1","fe80::1%eth0"]}}`, ""},
		{`{"dns":{"nameservers":["10.0.0.1","ns.example"]}}`, `dns.nameservers[1]: "ns.example" is not an IP address`},
		{`{"dns":{"nameservers":[""]}}`, `dns.nameservers[0]: "" is not an IP address`},
		{`{"dns":{"nameservers":["10.0.0.1#53"]}}`, `dns.nameservers[0]`},
		{`{"interfaces":[{"name":"a","mac":"x"}]}`, `interfaces[0].mac: "x" is not a MAC address`},
		{`{"interfaces":[{"name":"a","mac":"02:00:00:00:00"}]}`, "interfaces[0].mac"},
		{`{"interfaces":[{"name":"a","mac":"02:00:00:00:00:0g"}]}`, "interfaces[0].mac"},
		{`{"interfaces":[{"name":"a","mac":"02:00:00:00:0001"}]}`, "interfaces[0].mac"},
		{`{"interfaces":[{"name":"a","mac":"00:00:00:00:00:00"},{"name":"b","mac":"02-AA-bb-00-00-01"},{"name":"c","mac":""}]}`, ""},
		// Of 4 octets, as of an IPv4 tunnel; IP over InfiniBand; an EUI-64
		{`{"interfaces":[{"name":"a","mac":"0a:01:00:02"},{"name":"b","mac":"` + strings.Repeat("01:", 19) + `01"},{"name":"c","mac":"02:00:00:ff:fe:00:00:01"}]}`, ""},
	} {
		_, err := ParseResult([]byte(tt.doc), V110)
		if tt.text == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.doc, err)
			}
			continue
		}
		wantError(t, err, CodeConfig, tt.text)
		_, err = newRequest(Add, `{"name":"n","cniVersion":"1.1.0","prevResult":`+tt.doc+`}`)
		wantError(t, err, CodeConfig, "prevResult: "+tt.text)
	}
}

// A gateway of another family is an error for those who use it.
func TestCheckGateways(t *testing.T) {
	for doc, text := range map[string]string{
		`{"routes":[{"dst":"10.3.0.0/24"},{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`:                           "routes[1].gw: gateway fd00::1 is of another family than 10.3.0.0/24",
		`{"routes":[{"dst":"::/0","gw":"10.1.0.1"}]}`:                                                       "routes[0].gw: gateway 10.1.0.1 is of another family than ::/0",
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0","gw":"fd00::1"}]}}`:   "routes[0].gw",
		`{"ips":[{"address":"10.1.0.2/24"},{"address":"fd00::2/64","gateway":"10.1.0.1"}]}`:                 "ips[1].gateway: gateway 10.1.0.1 is of another family than fd00::2/64",
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"fd00::1"}}`:                             "ips[0].gateway: gateway fd00::1 is of another family than 10.1.0.2/24",
		`{"ips":[{"address":"::ffff:10.1.0.2/120","gateway":"::ffff:10.1.0.1"}],"routes":[{"dst":"::/0"}]}`: "",
	} {
		r, err := ParseResult([]byte(doc), V110)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		err = r.CheckGateways()
		if key, _ := KeyOf(err); (err == nil) != (text == "") || err != nil && (!strings.Contains(err.Error(), text) || !strings.HasPrefix(text, key)) {
			t.Errorf("%s: got %v about %q, want %q", doc, err, key, text)
		}
	}
}

// What a plugin passes on otherwise than it has received it, or another would refuse, is a warning
// of ADD, once.
func TestPrevResultWarnings(t *testing.T) {
	for doc, want := range map[string]string{
		`{"cniVersion":"0.2.0","ip4":{"ip":"fd00::2/64","routes":[{"dst":"::/0"},{"dst":"0.0.0.0/0"}]}}`:                                    "ip4.ip: fd00::2/64 is of the other family, and counts for that; ip4.routes[0].dst: ::/0 is",
		`{"cniVersion":"0.2.0","ip6":{"ip":"10.1.0.2/24"}}`:                                                                                 "ip6.ip: 10.1.0.2/24 is of the other",
		`{"interfaces":[{"name":"eth0","mtu":67},{"name":"a","mtu":65536},{"name":"lo","mtu":65536}]}`:                                      "interfaces[0].mtu: 67 is not within 68 to 65535: left out; interfaces[1].mtu: 65536",
		`{"ips":[{"address":"10.1.0.2/24","interface":1}],"interfaces":[{"name":"eth0"}]}`:                                                  "ips[0].interface: 1 is outside the list of 1 interfaces: left out",
		`{"cniVersion":"0.4.0","ips":[{"address":"10.1.0.2/24","version":"6"}]}`:                                                            `ips[0].version: "6" is not that of 10.1.0.2/24`,
		`{"ips":[{"address":"10.1.0.2/24","gateway":"fd00::1"}]}`:                                                                           "ips[0].gateway: gateway fd00::1 is of another family than 10.1.0.2/24",
		`{"routes":[{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`:                                                                                 "routes[0].gw: gateway fd00::1",
		`{"interfaces":[{"name":"eth0","mtu":0}],"ips":[{"address":"10.1.0.2/24","version":"4","interface":-1}],"routes":[{"dst":"::/0"}]}`: "",
	} {
		for _, verb := range []Verb{Add, Check, Del} {
			c := Call{Verb: verb, ContainerID: "c1", IfName: "eth0", NetNS: "/n"}
			r, err := NewRequest(c, []byte(`{"cniVersion":"1.1.0","name":"n","type":"x","prevResult":`+doc+`}`))
			if err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			var warned []string
			r.Warn = func(format string, args ...any) { warned = append(warned, fmt.Sprintf(format, args...)) }
			for range 2 {
				if _, err := (Plugin{}).Do(t.Context(), r); err != nil {
					t.Errorf("%s of %s: %v", verb, doc, err)
				}
			}
			wanted := strings.Split(want, "; ")
			if want == "" || verb != Add {
				wanted = nil
			}
			if !slices.EqualFunc(warned, wanted, func(got, want string) bool { return strings.HasPrefix(got, "prevResult: "+want) }) {
				t.Errorf("%s of %s: warned of %q, want %q", verb, doc, warned, wanted)
			}
		}
	}
}
