package portmap

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// portmapPrev has two interfaces of the container and one of the host.
const portmapPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[
	{"name":"eth0"},{"name":"eth0","sandbox":"/ns"},{"name":"net1","sandbox":"/ns"}],"ips":[
	{"address":"172.16.0.1/24","interface":0},{"address":"172.17.0.2/24","interface":2},
	{"address":"10.9.0.2/24","interface":1},{"address":"10.9.0.3/24","interface":1},{"address":"fd00:9::2/64"}]}`

func TestPortmapConf(t *testing.T) {
	tests := map[string]struct {
		conf string
		want string // the maps, one per line
		err  string
	}{
		"no mappings":    {conf: `{"x":1`, want: ""},
		"defaults":       {conf: mapping(`"hostPort":8080,"containerPort":80`), want: "6 *:8080 10.9.0.2:80 10.9.0.0/24 snat\n6 *:8080 [fd00:9::2]:80 fd00:9::/64 snat"},
		"as containerd":  {conf: mapping(`"HostPort":8080,"ContainerPort":80,"Protocol":"UDP","HostIP":"192.0.2.1"`), want: "17 192.0.2.1:8080 10.9.0.2:80 10.9.0.0/24 snat"},
		"sctp":           {conf: mapping(`"hostPort":1,"containerPort":65535,"protocol":"Sctp","hostIP":"fd00::1"`), want: "132 fd00::1:1 [fd00:9::2]:65535 fd00:9::/64 snat"},
		"any v4":         {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"0.0.0.0"`), want: "6 0.0.0.0:1 10.9.0.2:1 10.9.0.0/24 snat"},
		"any v6":         {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"::"`), want: "6 :::1 [fd00:9::2]:1 fd00:9::/64 snat"},
		"mapped v4":      {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"::ffff:192.0.2.1"`), want: "6 192.0.2.1:1 10.9.0.2:1 10.9.0.0/24 snat"},
		"hostPort 0":     {conf: mapping(`"hostPort":0,"containerPort":99999`), want: ""},
		"same twice":     {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"::"},{"protocol":"TCP","hostPort":1,"containerPort":1,"hostIP":"::"`), want: "6 :::1 [fd00:9::2]:1 fd00:9::/64 snat"},
		"one port twice": {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"192.0.2.1"},{"hostPort":1,"containerPort":2,"hostIP":"0.0.0.0"`), want: "6 192.0.2.1:1 10.9.0.2:1 10.9.0.0/24 snat\n6 0.0.0.0:1 10.9.0.2:2 10.9.0.0/24 snat"},
		"all other keys": {conf: mapping(`"hostPort":1,"containerPort":1`) + `,"backend":"nftables","masqAll":true,"markMasqBit":31,"conditionsV4":["-s","10.0.0.0/8"],"conditionsV6":["ip6","saddr","fd00::/8","meta","mark","5"]`,
			want: "6 *:1 10.9.0.2:1 10.9.0.0/24 snat masqAll 1 conditions\n6 *:1 [fd00:9::2]:1 fd00:9::/64 snat masqAll 2 conditions"},
		"masqAll is about snat": {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"::"`) + `,"snat":false,"masqAll":true`, want: "6 :::1 [fd00:9::2]:1 fd00:9::/64"},
		"iptables":              {conf: `{"backend":"iptables"`},
		"externalSetMarkChain":  {conf: `{"externalSetMarkChain":"KUBE-MARK-MASQ"`},

		"backend":                       {conf: `{"backend":"ipvs"`, err: `unrecognized backend "ipvs"`},
		"bit and chain":                 {conf: `{"markMasqBit":1,"externalSetMarkChain":""`, err: "Cannot specify externalSetMarkChain and markMasqBit"},
		"bit too big":                   {conf: `{"markMasqBit":32`, err: "MasqMarkBit must be between 0 and 31"},
		"bit below 0":                   {conf: `{"markMasqBit":-1`, err: "MasqMarkBit must be between 0 and 31"},
		"hostPort too big":              {conf: mapping(`"hostPort":65536,"containerPort":1`), err: "Invalid host port number: 65536"},
		"hostPort below 0":              {conf: mapping(`"hostPort":-1,"containerPort":1`), err: "Invalid host port number: -1"},
		"containerPort 0":               {conf: mapping(`"hostPort":1`), err: "number: 0"},
		"containerPort too big":         {conf: mapping(`"hostPort":1,"containerPort":70000`), err: "container port number: 70000"},
		"protocol":                      {conf: mapping(`"hostPort":1,"containerPort":1,"protocol":"icmp"`), err: `portMappings[0].protocol: "icmp"`},
		"hostIP":                        {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"localhost"`), err: "portMappings[0].hostIP"},
		"hostIP with a zone":            {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"fe80::1%eth0"`), err: "zone"},
		"port taken within the request": {conf: mapping(`"hostPort":1,"containerPort":1},{"hostPort":1,"containerPort":2`), err: "portMappings[1]: tcp * port 1 is asked for twice"},
		"any and any of a family":       {conf: mapping(`"hostPort":1,"containerPort":1,"hostIP":"::"},{"hostPort":1,"containerPort":2`), err: "asked for twice"},
		"conditions":                    {conf: `{"conditionsV4":["-j","DROP"]`, err: "conditionsV4"},
		"conditions on ports":           {conf: `{"conditionsV6":["tcp","sport","5"]`, err: `conditionsV6: conditions: "tcp" is not understood`},
		"conditions of the other kind":  {conf: `{"conditionsV6":["ip","saddr","10.0.0.1"]`, err: "conditionsV6"},
		"mappings are not a list":       {conf: `{"runtimeConfig":{"portMappings":{}}`, err: "portMappings"},
		"port is not a number":          {conf: mapping(`"hostPort":"x"`), err: "hostPort"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := spectest.Request(t, spec.Add, tt.conf+","+portmapPrev+"}", "")
			warned := 0
			r.Warn = func(string, ...any) { warned++ }
			p := &conf{}
			err := frame.Read(r, p)
			spectest.WantError(t, err, tt.err, spec.CodeConfig)
			if err != nil {
				return
			}
			if got := mapsText(p, r.Prev); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if want := strings.Count(tt.conf, `"iptables"`); warned != want {
				t.Errorf("%d warnings, want %d", warned, want)
			}
		})
	}
}

// mapping returns a configuration with one mapping, without the last brace.
func mapping(entry string) string { return `{"runtimeConfig":{"portMappings":[{` + entry + `}]}` }

func mapsText(p *conf, prev *spec.Result) string {
	var lines []string
	for m := range p.maps(targetsOf(prev, "eth0")) {
		host := "*"
		if m.HostIP.IsValid() {
			host = m.HostIP.String()
		}
		line := fmt.Sprintf("%d %s:%d %s %s", m.Proto, host, m.HostPort, m.Target, m.TargetPrefix)
		if m.SNAT {
			line += " snat"
		}
		if m.MasqAll {
			line += " masqAll"
		}
		if n := len(m.Conditions); n > 0 {
			line += fmt.Sprintf(" %d conditions", n)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// route_localnet is needed for mappings that may be reached from 127.0.0.1.
func TestPortmapLocalnetNeed(t *testing.T) {
	for text, want := range map[string]bool{
		mapping(`"hostPort":1,"containerPort":1`) + `}`:                      true,
		mapping(`"hostPort":1,"containerPort":1,"hostIP":"0.0.0.0"`) + `}`:   true,
		mapping(`"hostPort":1,"containerPort":1,"hostIP":"127.0.0.5"`) + `}`: true,
		mapping(`"hostPort":1,"containerPort":1,"hostIP":"192.0.2.1"`) + `}`: false,
		mapping(`"hostPort":1,"containerPort":1,"hostIP":"::"`) + `}`:        false,
		mapping(`"hostPort":1,"containerPort":1`) + `,"snat":false}`:         false,
		mapping(`"hostPort":1,"containerPort":1`) + `,"snat":true}`:          true,
	} {
		p := &conf{}
		if err := frame.Read(spectest.Request(t, spec.Add, text, ""), p); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		maps := p.maps([]netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd00::2/64")})
		if got := localnetTarget(maps).IsValid(); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func TestPortmapProtocolNumbers(t *testing.T) {
	for name, want := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP} {
		if got := hostport.ProtoNumber(name); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}

func FuzzPortmapConf(f *testing.F) {
	f.Add(mapping(`"hostPort":1,"containerPort":2,"protocol":"udp","hostIP":"::"`) + `,"conditionsV4":["!","-s","10.0.0.1"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := spectest.TryRequest(spec.Add, text, "")
		if err != nil {
			return
		}
		p := &conf{}
		if frame.Read(r, p) != nil {
			return
		}
		for m := range p.maps([]netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd00::2/64")}) {
			if m.HostPort == 0 || m.Target.Port() == 0 || m.HostIP.IsValid() && m.HostIP.Is4() != m.Target.Addr().Is4() {
				t.Errorf("%+v", m)
			}
		}
	})
}
