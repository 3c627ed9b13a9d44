package spec

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const seedConf = `{"cniVersion": "1.0.0", "name": "mynet", "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
	"ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
	"dns": {"nameservers": ["10.96.0.10"], "search": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"], "options": ["ndots:5"]}}`

// Codes and messages are those of the reference, as observed. Errors of verbs are in
// plugin_test.go.
func TestNewRequestErrors(t *testing.T) {
	tests := map[string]struct {
		conf string
		code int
		text string
	}{
		"empty":               {"", CodeDecode, "unexpected end"},
		"no name":             {`{}`, CodeConfig, "network name"},
		"empty name":          {`{"name":""}`, CodeConfig, "network name"},
		"null name":           {`{"name":null}`, CodeConfig, "network name"},
		"bad name":            {`{"name":"-x"}`, CodeConfig, "; -x"},
		"array":               {`[]`, CodeDecode, "an array"},
		"trailing bytes":      {`{"name":"n"} {}`, CodeDecode, "after top-level value"},
		"byte order mark":     {"\ufeff{\"name\":\"n\"}", CodeDecode, "invalid character"},
		"numeric cniVersion":  {`{"name":"n","cniVersion":1}`, CodeDecode, `"cniVersion"`},
		"null":                {`null`, CodeDecode, "null where an object is expected"},
		"name and path":       {`{"name":"../evil"}`, CodeConfig, "invalid characters"},
		"name with NUL":       {`{"name":"a\u0000"}`, CodeConfig, "invalid characters"},
		"name of 300":         {`{"name":"` + strings.Repeat("n", 300) + `"}`, CodeConfig, "network name is too long"},
		"numeric name":        {`{"name":5}`, CodeConfig, `"name" is a number where a string is expected`},
		"deep":                {strings.Repeat("[", 200000), CodeDecode, "depth"},
		"deep and valid":      {`{"name":"n","x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}", CodeDecode, "nested deeper than 100"},
		"large":               {`{"name":"` + strings.Repeat("n", MaxConf) + `"}`, CodeDecode, "more than 8388608 bytes"},
		"numeric type":        {`{"name":"n","type":1}`, CodeConfig, `"type" is a number`},
		"type is a path":      {`{"name":"n","type":"../x"}`, CodeConfig, `invalid plugin type "../x"`},
		"ipam a string":       {`{"name":"n","ipam":"host-local"}`, CodeConfig, `"ipam" is a string where an object is expected`},
		"ipam.type a number":  {`{"name":"n","ipam":{"type":1}}`, CodeConfig, `"ipam.type" is a number where a string is expected`},
		"ipam.type is a path": {`{"name":"n","ipam":{"type":"/bin/sh"}}`, CodeConfig, `invalid plugin type "/bin/sh"`},
		"dns a list":          {`{"name":"n","dns":[]}`, CodeConfig, `"dns" is an array where an object is expected`},
		"dns of numbers":      {`{"name":"n","dns":{"nameservers":[8]}}`, CodeConfig, `"dns.nameservers[0]" is a number where a string is expected`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newRequest(Add, tt.conf)
			wantError(t, err, tt.code, tt.text)
			// DEL accepts any JSON object that names the network.
			if strings.Contains(name, "name") || tt.code == CodeDecode && name != "numeric cniVersion" {
				_, err := newRequest(Del, tt.conf)
				wantError(t, err, tt.code, tt.text)
			} else if _, err := newRequest(Del, tt.conf); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

func TestNewRequest(t *testing.T) {
	r := request(t, Add, seedConf, "CNI_PATH", "/a:/b")
	if r.Attachment != (Attachment{"mynet", "c1", "eth0"}) || !slices.Equal(r.Path, []string{"/a", "/b"}) {
		t.Errorf("got %v, path %q", r.Attachment, r.Path)
	}
	want := NetConf{Version: V100, CNIVersion: "1.0.0", Name: "mynet", Type: "bridge", DNS: DNS{
		Nameservers: []string{"10.96.0.10"},
		Search:      []string{"default.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Options:     []string{"ndots:5"},
	}}
	want.IPAM.Type = "host-local"
	if !reflect.DeepEqual(r.Net, want) {
		t.Errorf("got  %+v\nwant %+v", r.Net, want)
	}
	if string(r.Conf()) != seedConf || r.Prev != nil || r.Valid != nil {
		t.Errorf("got conf %s, prev %v, valid %v", r.Conf(), r.Prev, r.Valid)
	}
	r.Warn("it was not set")
}

// As in encoding/json, keys are compared without regard to case, a key may have escapes, and of
// equal keys the last one counts.
func TestKeysInAnyCase(t *testing.T) {
	r := request(t, Del, `{"NAME":"no","na\u006de":"up","CNIVERSION":"1.0.0","IpAm":{"TYPE":"static"}}`)
	if r.Network != "up" || r.Net.Version != V100 || r.Net.IPAM.Type != "static" {
		t.Errorf("got %+v", r.Net)
	}
	if r := request(t, Del, `{"name":"n","ipam":null,"dns":null}`); r.Net.Version != V010 || r.Net.IPAM.Type != "" {
		t.Errorf("no version: got %+v", r.Net)
	}
}

// A prevResult may have another version than the configuration, and without one has the
// configuration's.
func TestPrevResult(t *testing.T) {
	tests := map[string]struct {
		version, prev string
		want          string // part of its encoding in the newest version; "none": no prevResult
		text          string // part of the error, which has code 7
	}{
		"empty list":          {version: "1.0.0", prev: `{"ips":[]}`, want: `{`},
		"empty":               {version: "1.0.0", prev: `{}`, want: `{`},
		"null":                {version: "1.0.0", prev: `null`, want: "none"},
		"newer family":        {version: "0.4.0", prev: `{"cniVersion":"1.0.0","interfaces":[{"name":"a","mtu":1400}]}`, want: `"mtu":1400`},
		"older family":        {version: "1.1.0", prev: `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/16"}}`, want: `"address":"10.1.0.2/16"`},
		"same family":         {version: "1.0.0", prev: `{"cniVersion":"1.1.0"}`, want: `{`},
		"empty version":       {version: "0.4.0", prev: `{"cniVersion":"","ips":[{"address":"10.1.0.2/16","version":"4"}]}`, want: `"10.1.0.2/16"`},
		"no version anywhere": {version: "", prev: `{"ip4":{"ip":"10.1.0.2/16"}}`, want: `"10.1.0.2/16"`},
		"unknown members":     {version: "1.1.0", prev: `{"x":{"y":9007199254740993}}`, want: `"x":{"y":9007199254740993}`},
		"ip of 0.3.0":         {version: "0.3.0", prev: `{"ip":[{"address":"10.1.0.2/16"}]}`, want: `"ips":[{"address":"10.1.0.2/16"}]`},
		"a list":              {version: "1.0.0", prev: `[]`, text: "prevResult: an array where an object"},
		"unknown version":     {version: "1.0.0", prev: `{"cniVersion":"2.0.0"}`, text: `prevResult: unsupported CNI result version "2.0.0"`},
		"bad index":           {version: "1.0.0", prev: `{"ips":[{"address":"10.1.0.2/16","interface":-2}]}`, text: "prevResult: ips[0].interface: -2 is not an integer"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := newRequest(Add, `{"name":"n","cniVersion":"`+tt.version+`","prevResult":`+tt.prev+`}`)
			if tt.text != "" {
				wantError(t, err, CodeConfig, tt.text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Prev == nil || tt.want == "none" {
				if r.Prev != nil || tt.want != "none" {
					t.Errorf("got %v, want %s", r.Prev, tt.want)
				}
				return
			}
			b, err := r.Prev.Encode(Newest)
			var line bytes.Buffer
			json.Compact(&line, b)
			if err != nil || !strings.Contains(line.String(), tt.want) {
				t.Errorf("got %s, %v, want …%s…", b, err, tt.want)
			}
		})
	}
}

// An index without an interface is refused only by plugins that use it. Others pass the address on
// without the index.
func TestIndexWithoutInterface(t *testing.T) {
	r := request(t, Add, `{"name":"n","cniVersion":"1.0.0","prevResult":{"ips":[{"address":"10.1.0.2/16","interface":0}]}}`)
	wantError(t, r.CheckIndexes(), CodeConfig, "prevResult: ips[0].interface: 0 is outside the list of 0 interfaces")
	if b, err := r.Encode(r.Prev); err != nil || strings.Contains(string(b), "interface") {
		t.Errorf("got %s, %v", b, err)
	}
	good := request(t, Add, `{"name":"n","cniVersion":"1.0.0","prevResult":{"interfaces":[{"name":"a"}],"ips":[{"address":"10.1.0.2/16","interface":0}]}}`)
	if err := good.CheckIndexes(); err != nil {
		t.Error(err)
	}
}

// The three forms of the valid attachments that runtimes use, and invalid ones.
func TestValidAttachments(t *testing.T) {
	tests := map[string]struct {
		members string
		want    []Attachment
		text    string
	}{
		"neither":      {members: `"x":1`},
		"null":         {members: `"cni.dev/valid-attachments":null`, want: []Attachment{}},
		"empty":        {members: `"cni.dev/attachments":[]`, want: []Attachment{}},
		"list":         {members: `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`, want: []Attachment{{"n", "c1", "eth0"}}},
		"first wins":   {members: `"cni.dev/valid-attachments":[],"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]`, want: []Attachment{}},
		"tagged text":  {members: `"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]`, want: []Attachment{{"n", "c1", "eth0"}}},
		"bad ID":       {members: `"cni.dev/valid-attachments":[{"containerID":"../c","ifname":"eth0"}]`, text: "cni.dev/valid-attachments[0]: invalid characters"},
		"no interface": {members: `"cni.dev/valid-attachments":[{"containerID":"c"}]`, text: "is empty"},
		"null entry":   {members: `"cni.dev/valid-attachments":[null]`, text: "cni.dev/valid-attachments[0] is null"},
		"no list":      {members: `"cni.dev/valid-attachments":{}`, text: "an object"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := newRequest(GC, `{"name":"n","cniVersion":"1.1.0",`+tt.members+`}`)
			if tt.text != "" {
				wantError(t, err, CodeConfig, tt.text)
				return
			}
			if err != nil || !reflect.DeepEqual(r.Valid, tt.want) {
				t.Errorf("got %#v, %v, want %#v", r.Valid, err, tt.want)
			}
		})
	}
}

// invoked records the request of a delegate.
type invoked struct {
	plugin string
	r      *Request
}

func (i *invoked) Invoke(_ context.Context, plugin string, r *Request) (*Result, error) {
	i.plugin, i.r = plugin, r
	return &Result{}, nil
}

func (i *invoked) Find(string) (*Plugin, error) { return &Plugin{Facts: Facts{IPAM: true}}, nil }

func (i *invoked) Known(string) *Plugin { return nil }

func TestDelegate(t *testing.T) {
	r := request(t, Add, `{"name":"n","cniVersion":"1.0.0","prevResult":{"interfaces":[{"name":"a","x":1}]}}`)
	in := &invoked{}
	r.Invoker = in
	if _, err := r.Delegate(context.Background(), "static", Del); err != nil {
		t.Fatal(err)
	}
	if in.plugin != "static" || in.r.Call.Verb != Del || r.Call.Verb != Add || in.r.Attachment != r.Attachment {
		t.Errorf("got %s %s", in.plugin, in.r.Call.Verb)
	}
	in.r.Prev.Interfaces[0].Name = "changed"
	in.r.Path[0] = "changed"
	if r.Prev.Interfaces[0].Name != "a" || r.Path[0] != "/opt/cni/bin" {
		t.Error("the delegate's request is not its own")
	}
	in.plugin = ""
	_, err := r.Delegate(context.Background(), "../static", Add)
	wantError(t, err, CodeConfig, "invalid plugin type")
	if in.plugin != "" {
		t.Error("a plugin with a path as its name was run")
	}
}

func BenchmarkNewRequest(b *testing.B) {
	conf := []byte(strings.TrimSuffix(seedConf, "}") + `,"prevResult":` + seedResult + `}`)
	c, _ := ReadCall(env(Add))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewRequest(c, conf); err != nil {
			b.Fatal(err)
		}
	}
}
