package spec

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/schematest"
)

// The example of the schema for results.
const seedResult = `{ "cniVersion": "1.0.0", "interfaces": [ { "name": "cni0", "mac": "0a:58:0a:f4:00:01", "sandbox": "" },
	{ "name": "veth1a2b3c4d", "mac": "0a:58:0a:f4:00:02", "sandbox": "" },
	{ "name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": "/proc/12345/ns/net" } ],
	"ips": [ { "address": "10.244.0.5/24", "gateway": "10.244.0.1", "interface": 2 } ],
	"routes": [ { "dst": "0.0.0.0/0", "gw": "10.244.0.1" } ],
	"dns": { "nameservers": ["10.96.0.10"], "search": [ "default.svc.cluster.local", "svc.cluster.local", "cluster.local" ], "options": ["ndots:5"] } }`

// A result with every member in the four wire formats, and what remains of the oldest one in newer
// formats. V stands for the version.
const (
	richD = `{"cniVersion":"V","interfaces":[{"mac":"02:00:00:00:00:01","mtu":1500,"name":"cni0"},` +
		`{"mac":"02:00:00:00:00:02","mtu":1400,"name":"eth0","pciID":"0000:00:1f.6","sandbox":"/run/netns/a","socketPath":"/run/s"}],` +
		`"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":1},{"address":"10.1.2.4/24","interface":1},{"address":"fd00::5/64","interface":0}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"advmss":1360,"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"priority":5,"scope":253,"table":100},{"dst":"::/0"}]}`
	richC = `{"cniVersion":"V","interfaces":[{"mac":"02:00:00:00:00:01","name":"cni0"},` +
		`{"mac":"02:00:00:00:00:02","name":"eth0","sandbox":"/run/netns/a"}],` +
		`"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":1},{"address":"10.1.2.4/24","interface":1},{"address":"fd00::5/64","interface":0}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"advmss":1360,"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"priority":5,"scope":253,"table":100},{"dst":"::/0"}]}`
	richB = `{"cniVersion":"V","interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/a"}],` +
		`"ips":[{"version":"4","interface":1,"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"version":"4","interface":1,"address":"10.1.2.4/24"},` +
		`{"version":"6","interface":0,"address":"fd00::5/64"}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"advmss":1360,"priority":5,"table":100,"scope":253},{"dst":"::/0"}],"dns":{}}`
	richA = `{"cniVersion":"V","ip4":{"ip":"10.1.2.3/24","gateway":"10.1.2.1","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"advmss":1360,"priority":5,"table":100,"scope":253}]},` +
		`"ip6":{"ip":"fd00::5/64","routes":[{"dst":"::/0"}]},"dns":{}}`

	upAB = `{"cniVersion":"V","ips":[{"version":"4","address":"10.1.2.3/24","gateway":"10.1.2.1"},{"version":"6","address":"fd00::5/64"}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"advmss":1360,"priority":5,"table":100,"scope":253},{"dst":"::/0"}],"dns":{}}`
	upAC = `{"cniVersion":"V","ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd00::5/64"}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"advmss":1360,"dst":"10.9.0.0/16","gw":"10.1.2.254","mtu":1400,"priority":5,"scope":253,"table":100},{"dst":"::/0"}]}`
)

// formatOf returns the wire format of a version, A to D.
func formatOf(v Version) string {
	switch {
	case v.NeedsAddress():
		return "A"
	case v.AtLeast(V110):
		return "D"
	case v.AtLeast(V100):
		return "C"
	}
	return "B"
}

// sorted returns JSON with sorted keys, indented by a text unless that is empty.
func sorted(t *testing.T, doc, indent string) string {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	err := d.Decode(&v)
	b, _ := json.Marshal(v)
	var out bytes.Buffer
	if indent == "" {
		out.Write(b)
	} else {
		json.Indent(&out, b, "", indent)
	}
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return out.String()
}

// A result is converted between every two versions.
func TestConvert(t *testing.T) {
	source := map[string]string{"A": richA, "B": richB, "C": richC, "D": richD}
	want := map[string]string{
		"AA": richA, "AB": upAB, "AC": upAC, "AD": upAC, "BA": richA, "BB": richB, "BC": richC, "BD": richC,
		"CA": richA, "CB": richB, "CC": richC, "CD": richC, "DA": richA, "DB": richB, "DC": richC, "DD": richD,
	}
	for _, from := range versions {
		for _, to := range versions {
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				in := strings.Replace(source[formatOf(from)], `"V"`, `"`+from.String()+`"`, 1)
				r, err := ParseResult([]byte(in), V010)
				if err != nil {
					t.Fatal(err)
				}
				got, err := r.Encode(to)
				if err != nil {
					t.Fatal(err)
				}
				goal := strings.Replace(want[formatOf(from)+formatOf(to)], `"V"`, `"`+to.String()+`"`, 1)
				if indented := sorted(t, goal, "    "); string(got) != indented {
					t.Errorf("got  %s\nwant %s", got, indented)
				}
				if problems := schematest.CheckResult(got); len(problems) > 0 {
					t.Errorf("against the schema: %v", problems)
				}
			})
		}
	}
}

// The output in each format, on one line.
func TestEncode(t *testing.T) {
	tests := map[string]struct {
		in   string
		v    Version
		want string
	}{
		"empty, B":          {`{}`, V031, `{"cniVersion":"0.3.1","dns":{}}`},
		"empty, C":          {`{}`, V100, `{"cniVersion":"1.0.0"}`},
		"empty lists":       {`{"interfaces":[],"ips":[],"routes":null,"dns":{"search":[]}}`, V110, `{"cniVersion":"1.1.0"}`},
		"dns in order":      {`{"dns":{"options":["o"],"search":["s"],"domain":"d","nameservers":["::1"]}}`, V031, `{"cniVersion":"0.3.1","dns":{"nameservers":["::1"],"domain":"d","search":["s"],"options":["o"]}}`},
		"dns sorted":        {`{"dns":{"options":["o"],"search":["s"],"domain":"d","nameservers":["::1"]}}`, V100, `{"cniVersion":"1.0.0","dns":{"domain":"d","nameservers":["::1"],"options":["o"],"search":["s"]}}`},
		"escapes":           {`{"interfaces":[{"name":"<&>"}]}`, V100, `{"cniVersion":"1.0.0","interfaces":[{"name":"\u003c\u0026\u003e"}]}`},
		"MTU of lo":         {`{"interfaces":[{"name":"lo","mtu":65536,"mac":""},{"name":"a","mtu":67},{"name":"b","mtu":65535}]}`, V110, `{"cniVersion":"1.1.0","interfaces":[{"name":"lo"},{"name":"a"},{"mtu":65535,"name":"b"}]}`},
		"index -1":          {`{"ips":[{"address":"10.0.0.1/8","interface":-1}]}`, V110, `{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/8"}]}`},
		"zeros":             {`{"routes":[{"dst":"10.0.0.0/8","table":0,"scope":0,"mtu":0}]}`, V110, `{"cniVersion":"1.1.0","routes":[{"dst":"10.0.0.0/8","scope":0,"table":0}]}`},
		"forms of address":  {`{"ips":[{"address":"FD00:0::5/64","gateway":""},{"address":"::ffff:10.0.0.1/120","gateway":"::ffff:10.0.0.2"}]}`, V110, `{"cniVersion":"1.1.0","ips":[{"address":"fd00::5/64"},{"address":"10.0.0.1/24","gateway":"10.0.0.2"}]}`},
		"ip of 0.3.0":       {`{"cniVersion":"0.3.0","ip":[{"address":"10.0.0.1/8","version":"4"}]}`, V030, `{"cniVersion":"0.3.0","ips":[{"version":"4","address":"10.0.0.1/8"}],"dns":{}}`},
		"version missing":   {`{"cniVersion":"0.4.0","ips":[{"address":"10.0.0.1/8"}]}`, V020, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8"},"dns":{}}`},
		"no IPv4":           {`{"ips":[{"address":"fd00::1/8"}],"routes":[{"dst":"0.0.0.0/0"}]}`, V010, `{"cniVersion":"0.1.0","ip6":{"ip":"fd00::1/8"},"dns":{}}`},
		"shape as is":       {`{"cniVersion":"0.2.0","interfaces":[{"name":"lo"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`, V031, `{"cniVersion":"0.3.1","interfaces":[{"name":"lo"}],"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"}],"dns":{}}`},
		"unknown, B":        {`{"z":{"n":9007199254740993},"interfaces":[{"x":null,"name":"a"}],"dns":{"e":1}}`, V040, `{"cniVersion":"0.4.0","interfaces":[{"name":"a","x":null}],"dns":{"e":1},"z":{"n":9007199254740993}}`},
		"unknown, C":        {`{"b":1.10,"ips":[{"address":"10.0.0.1/8","a":"<"}],"routes":[{"dst":"0.0.0.0/0","x":[1, 2]}]}`, V110, `{"b":1.10,"cniVersion":"1.1.0","ips":[{"a":"<","address":"10.0.0.1/8"}],"routes":[{"dst":"0.0.0.0/0","x":[1,2]}]}`},
		"unknown, A":        {`{"cniVersion":"0.2.0","y":1,"ip4":{"ip":"10.0.0.1/8","x":2,"routes":[{"dst":"0.0.0.0/0","w":3}]}}`, V020, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8","routes":[{"dst":"0.0.0.0/0","w":3}],"x":2},"dns":{},"y":1}`},
		"without a name":    {`{"ips":[{"address":"10.0.0.1/8","":[],"extra":1,"-":2}],"dns":{"":3}}`, V110, `{"cniVersion":"1.1.0","dns":{"":3},"ips":[{"":[],"-":2,"address":"10.0.0.1/8","extra":1}]}`},
		"broken text":       {"{\"\xff\":1,\"\xfe\":2,\"interfaces\":[{\"name\":\"\xff\"}]}", V110, `{"cniVersion":"1.1.0","interfaces":[{"name":"�"}],"�":2}`},
		"ip is unknown":     {`{"ip":7}`, V031, `{"cniVersion":"0.3.1","dns":{},"ip":7}`},
		"not so in 0.3.0":   {`{"ip":7}`, V030, `{"cniVersion":"0.3.0","dns":{}}`},
		"keys in any case":  {`{"IPS":[{"ADDRESS":"10.0.0.1/8"}],"Interfaces":[{"Name":"a","PciID":"p"}]}`, V110, `{"cniVersion":"1.1.0","interfaces":[{"name":"a","pciID":"p"}],"ips":[{"address":"10.0.0.1/8"}]}`},
		"last of two":       {`{"dns":{"domain":"a"},"dns":{"search":["b"]}}`, V110, `{"cniVersion":"1.1.0","dns":{"search":["b"]}}`},
		"host bits of dst":  {`{"routes":[{"dst":"10.9.1.1/16","gw":""}]}`, V110, `{"cniVersion":"1.1.0","routes":[{"dst":"10.9.1.1/16"}]}`},
		"InfiniBand":        {`{"interfaces":[{"name":"ib0","mac":"80:00:02:08:fe:80:00:00:00:00:00:00:02:03:c9:03:00:31:70:f1"}]}`, V110, `{"cniVersion":"1.1.0","interfaces":[{"mac":"80:00:02:08:fe:80:00:00:00:00:00:00:02:03:c9:03:00:31:70:f1","name":"ib0"}]}`},
		"example of schema": {seedResult, V020, `{"cniVersion":"0.2.0","ip4":{"ip":"10.244.0.5/24","gateway":"10.244.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.244.0.1"}]},"dns":{"nameservers":["10.96.0.10"],"search":["default.svc.cluster.local","svc.cluster.local","cluster.local"],"options":["ndots:5"]}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := ParseResult([]byte(tt.in), V110)
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Encode(tt.v)
			if err != nil {
				t.Fatal(err)
			}
			var line bytes.Buffer
			if err := json.Compact(&line, got); err != nil || line.String() != sorted(t, tt.want, "") {
				t.Errorf("got  %s, %v\nwant %s", line.String(), err, tt.want)
			}
		})
	}
}

func TestEncodeErrors(t *testing.T) {
	_, err := request(t, Add, `{"name":"n","cniVersion":"0.2.0"}`).Encode(&Result{Interfaces: []Interface{{Name: "a"}}})
	wantError(t, err, CodeConfig, "cannot convert")
	if b, err := (&Result{}).Encode(V020); err != nil || !strings.Contains(string(b), `"0.2.0"`) {
		t.Errorf("of others: got %s, %v", b, err)
	}
	_, err = (&Result{}).Encode(Version{1, 2, 0})
	wantError(t, err, CodeConfig, "no converter for CNI result version 1.1.0 to 1.2.0")
}

// An index without an interface must not reach a runtime, which would crash.
func TestEncodeIndex(t *testing.T) {
	r, err := ParseResult([]byte(seedResult), V100)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1, 3} {
		r.IPs[0].Interface = &n
		if b, err := r.Encode(V110); err != nil || bytes.Contains(b, []byte(`"interface":`)) {
			t.Errorf("%d: got %s, %v", n, b, err)
		}
	}
}

// The oldest format has one address of each family, which must be the container's.
func TestEncodeFor(t *testing.T) {
	in := `{"interfaces":[{"name":"eth0"},{"name":"net1","sandbox":"/n"},{"name":"eth0","sandbox":"/n"}],
		"ips":[{"address":"10.0.0.1/8","interface":0},{"address":"10.0.0.2/8","interface":1},{"address":"10.0.0.3/8","interface":2},{"address":"fd00::1/64"}]}`
	r, err := ParseResult([]byte(in), V110)
	if err != nil {
		t.Fatal(err)
	}
	for ifName, want := range map[string]string{"eth0": "10.0.0.3/8", "net1": "10.0.0.2/8", "": "10.0.0.1/8"} {
		b, err := r.EncodeFor(V020, ifName)
		if err != nil || !strings.Contains(string(b), `"ip": "`+want+`"`) || !strings.Contains(string(b), "fd00::1/64") {
			t.Errorf("%q: got %s, %v, want %s", ifName, b, err, want)
		}
	}
	q := request(t, Add, `{"name":"n","cniVersion":"0.2.0"}`)
	if b, err := q.Encode(r); err != nil || !strings.Contains(string(b), "10.0.0.3/8") {
		t.Errorf("as an answer: got %s, %v", b, err)
	}
}

// Unknown members are not indented, which would multiply their size.
func TestEncodeLarge(t *testing.T) {
	in := `{"x":[` + strings.Repeat("[[1]],", 20000) + `0]}`
	r, err := ParseResult([]byte(in), V110)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := r.Encode(V110); err != nil || len(b) > len(in)+50 {
		t.Errorf("got %d bytes of %d, %v", len(b), len(in), err)
	}
}

func BenchmarkEncode(b *testing.B) {
	r, err := ParseResult([]byte(seedResult), V100)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Encode(V110); err != nil {
			b.Fatal(err)
		}
	}
}
