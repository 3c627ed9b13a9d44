package spec

import (
	"strings"
	"testing"
)

// A result with values that no kernel or resolver accepts is refused, from any plugin.
func TestParseResultRefusesValues(t *testing.T) {
	for _, tt := range []struct{ doc, text string }{
		{`{"routes":[{"dst":"10.3.0.0/24","gw":"fd00::1"}]}`, "routes[0].gw: gateway fd00::1 is of another family than 10.3.0.0/24"},
		{`{"routes":[{"dst":"::/0","gw":"10.1.0.1"}]}`, "routes[0].gw: gateway 10.1.0.1 is of another family than ::/0"},
		{`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0","gw":"fd00::1"}]}}`, "ip4.routes[0].gw"},
		{`{"routes":[{"dst":"10.3.0.0/24","gw":"::ffff:10.1.0.1"}]}`, ""},
		{`{"ips":[{"address":"10.1.0.2/24","gateway":"fd00::1"}]}`, "ips[0].gateway: gateway fd00::1 is of another family than 10.1.0.2/24"},
		{`{"ips":[{"address":"10.1.0.2/24"},{"address":"fd00::2/64","gateway":"10.1.0.1"}]}`, "ips[1].gateway: gateway 10.1.0.1 is of another family than fd00::2/64"},
		{`{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24","gateway":"fd00::1"}}`, "ip4.gateway: gateway fd00::1 is of another family than 10.1.0.2/24"},
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
