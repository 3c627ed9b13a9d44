package flannel

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

const (
	subnetEnv4 = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	subnetEnv6 = "FLANNEL_IPV6_NETWORK=fd00:10::/56\nFLANNEL_IPV6_SUBNET=fd00:10:0:3::1/64\n"
)

func TestSubnetEnv(t *testing.T) {
	only4 := "[10.244.0.0/16] [] 10.244.3.0/24 invalid Prefix 1450 true"
	tests := map[string]struct{ text, want, err string }{
		"IPv4":       {text: subnetEnv4, want: only4},
		"dual stack": {text: subnetEnv4 + subnetEnv6, want: "[10.244.0.0/16] [fd00:10::/56] 10.244.3.0/24 fd00:10:0:3::/64 1450 true"},
		"IPv6 alone": {text: subnetEnv6 + "FLANNEL_MTU=1280\nFLANNEL_IPMASQ=false\n",
			want: "[] [fd00:10::/56] invalid Prefix fd00:10:0:3::/64 1280 false"},
		"several networks": {text: subnetEnv4 + "FLANNEL_NETWORK=10.0.0.0/8, 192.168.0.0/16,,10.1.0.0/8\n",
			want: "[10.0.0.0/8 192.168.0.0/16] [] 10.244.3.0/24 invalid Prefix 1450 true"},
		"CRLF":                {text: strings.ReplaceAll(subnetEnv4, "\n", "\r\n"), want: only4},
		"no newline":          {text: strings.TrimSuffix(subnetEnv4, "\n"), want: only4},
		"blanks":              {text: strings.ReplaceAll("  "+subnetEnv4+"\n\n", "=", " = "), want: only4},
		"quotes":              {text: strings.ReplaceAll(strings.ReplaceAll(subnetEnv4, "=", `="`), "\n", "\"\n"), want: only4},
		"single quotes":       {text: strings.Replace(subnetEnv4, "1450", "'1450' # bytes", 1), want: only4},
		"comments":            {text: "# FLANNEL_MTU=1\n" + strings.Replace(subnetEnv4, "1450", "1450 # bytes", 1), want: only4},
		"export":              {text: "export " + subnetEnv4, want: only4},
		"unknown keys":        {text: "FLANNEL_FUTURE=x\nPATH=/bin\n" + subnetEnv4, want: only4},
		"no =":                {text: "FLANNEL_MTU\nFLANNEL_SUBNET\n" + subnetEnv4, want: only4},
		"no = alone":          {text: "FLANNEL_MTU", err: "is missing FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"},
		"empty":               {text: "", err: "is missing FLANNEL_NETWORK"},
		"empty value":         {text: strings.Replace(subnetEnv4, "10.244.3.1/24", "", 1), err: "is missing FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET"},
		"MTU":                 {text: strings.Replace(subnetEnv4, "1450", "1450B", 1), err: `has a bad FLANNEL_MTU: "1450B" is not a number of bytes`},
		"MTU of 33 bits":      {text: strings.Replace(subnetEnv4, "1450", "4294967296", 1), err: "has a bad FLANNEL_MTU"},
		"subnet":              {text: strings.Replace(subnetEnv4, "10.244.3.1/24", "10.244.3.1", 1), err: `has a bad FLANNEL_SUBNET: "10.244.3.1" is not a network`},
		"one of the networks": {text: strings.Replace(subnetEnv4, "10.244.0.0/16", "10.0.0.0/8,x", 1), err: "has a bad FLANNEL_NETWORK"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := parseSubnetEnv(tt.text)
			if err != nil || tt.err != "" {
				if err == nil || tt.err == "" || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, %v, want %q", e, err, tt.err)
				}
				return
			}
			if got := fmt.Sprint(e.networks4, e.networks6, e.subnet4, e.subnet6, e.mtu, e.ipMasq); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzSubnetEnv(f *testing.F) {
	f.Add(subnetEnv4 + subnetEnv6)
	f.Add("FLANNEL_MTU\nexport FLANNEL_NETWORK='\r\n=\n#")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseSubnetEnv(text)
		if err != nil {
			return
		}
		fl := &plan{conf: conf{Delegate: []byte("{}"), IPAM: []byte("{}")}, kind: "bridge"}
		conf, err := fl.delegateConf(spectest.Request(t, spec.Add, "{}", ""), e)
		if err != nil || !json.Valid(conf) {
			t.Errorf("%q gives %s, %v", text, conf, err)
		}
	})
}

// Reading from a pipe does not block, and only a regular file is accepted.
func TestSubnetEnvFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "regular file", dir: "regular file", filepath.Join(dir, "none"): "no such",
	} {
		if _, err := readSubnetEnv(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	link := filepath.Join(dir, "link")
	os.WriteFile(filepath.Join(dir, "file"), []byte(subnetEnv4), 0o644)
	os.Symlink("file", link)
	if _, err := readSubnetEnv(link); err != nil {
		t.Error(err)
	}
}

// The configuration of the delegate equals the reference's in each key.
func TestFlannelDelegate(t *testing.T) {
	const ranges4 = `"ranges":[[{"subnet":"10.244.3.0/24"}]]`
	const routes4 = `"routes":[{"dst":"10.244.0.0/16"}]`
	const ipam4 = `"ipam":{"type":"host-local",` + ranges4 + `,` + routes4 + `}`
	const head = `{"name":"net1","cniVersion":"1.1.0",`
	tests := map[string]struct{ keys, env, want string }{
		"no keys": {`{}`, subnetEnv4, head + `"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,` + ipam4 + `}`},
		"no masquerading by flanneld": {`{}`, strings.Replace(subnetEnv4, "true", "false", 1),
			head + `"type":"bridge","ipMasq":true,"mtu":1450,"isGateway":true,` + ipam4 + `}`},
		"all said": {`{"delegate":{"type":"bridge","ipMasq":true,"mtu":1300,"isGateway":false,"hairpinMode":true,"forceAddress":true,"x":1e30}}`, subnetEnv4,
			head + `"type":"bridge","ipMasq":true,"mtu":1300,"isGateway":false,"hairpinMode":true,"forceAddress":true,"x":1e30,` + ipam4 + `}`},
		"in other letters": {`{"delegate":{"IPMASQ":true,"isgateway":false}}`, subnetEnv4,
			head + `"type":"bridge","IPMASQ":true,"isgateway":false,"mtu":1450,` + ipam4 + `}`},
		"not a bridge": {`{"delegate":{"type":"ptp"}}`, subnetEnv4, head + `"type":"ptp","ipMasq":false,"mtu":1450,` + ipam4 + `}`},
		"version":      {`{"delegate":{"cniVersion":"0.3.1"}}`, subnetEnv4, head + `"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,` + ipam4 + `}`},
		"dual stack": {`{}`, subnetEnv4 + subnetEnv6, head + `"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,
			"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.3.0/24"}],[{"subnet":"fd00:10:0:3::/64"}]],
			"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10::/56"}]}}`},
		"ipam": {`{"ipam":{"type":"other","dataDir":"/d","ranges":[[{"subnet":"1.0.0.0/8"}]],"routes":[{"dst":"0.0.0.0/0","mtu":1400}]}}`, subnetEnv4,
			head + `"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,"ipam":{"type":"other","dataDir":"/d",` + ranges4 + `,
			"routes":[{"dst":"0.0.0.0/0","mtu":1400},{"dst":"10.244.0.0/16"}]}}`},
		"runtimeConfig": {`{"runtimeConfig":{"portMappings":[{"hostPort":1}],"mac":"x"},"dns":{"domain":"d"},"args":{"cni":{}}}`, subnetEnv4,
			head + `"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,` + ipam4 + `,"runtimeConfig":{"portMappings":[{"hostPort":1}],"mac":"x"}}`},
		"to release": {`{"ipam":{"dataDir":"/d","routes":[{"dst":"0.0.0.0/0"}]}}`, "",
			head + `"type":"bridge","isGateway":true,"ipam":{"type":"host-local","dataDir":"/d","routes":[{"dst":"0.0.0.0/0"}]}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := spectest.Request(t, spec.Add, tt.keys, "")
			f, err := readPlan(r)
			if err != nil {
				t.Fatal(err)
			}
			var env *subnetEnv
			if tt.env != "" {
				if env, err = parseSubnetEnv(tt.env); err != nil {
					t.Fatal(err)
				}
			}
			conf, err := f.delegateConf(r, env)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if json.Unmarshal(conf, &got); json.Unmarshal([]byte(tt.want), &want) != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got  %s\nwant %s", conf, tt.want)
			}
		})
	}
}

func TestFlannelRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ keys, want string }{
		"type":         {`{"delegate":{"type":1}}`, "'delegate' dictionary: its 'type' field must be a string"},
		"type null":    {`{"delegate":{"type":null}}`, "its 'type' field must be a string"},
		"type empty":   {`{"delegate":{"type":""}}`, "missing plugin type"},
		"type a path":  {`{"delegate":{"type":"../bridge"}}`, "invalid plugin type"},
		"itself":       {`{"delegate":{"type":"flannel"}}`, "is flannel itself"},
		"as suffix":    {`{"delegate":{"type":"k3s-flannel"}}`, "is flannel itself"},
		"name":         {`{"delegate":{"NAME":"x"}}`, "must not have a 'name' field"},
		"ipam":         {`{"delegate":{"ipam":{}}}`, "must not have an 'ipam' field"},
		"delegate":     {`{"delegate":[]}`, "'delegate' dictionary: an array where an object"},
		"subnetFile":   {`{"subnetFile":"run/subnet.env"}`, "absolute path"},
		"NUL":          {`{"subnetFile":"/run\u0000"}`, "absolute path"},
		"dataDir":      {`{"dataDir":"var/lib"}`, `"dataDir" "var/lib" is not an absolute path`},
		"dataDir type": {`{"dataDir":1}`, "dataDir"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readPlan(spectest.Request(t, spec.Add, tt.keys, ""))
			spectest.WantError(t, err, tt.want, spec.CodeConfig)
		})
	}
	for name, keys := range map[string]string{"routes": `{"ipam":{"routes":[{"dst":"x"}]}}`, "routes type": `{"ipam":{"routes":{}}}`} {
		t.Run(name, func(t *testing.T) {
			r := spectest.Request(t, spec.Add, keys, "")
			f, err := readPlan(r)
			if err == nil {
				env, _ := parseSubnetEnv(subnetEnv4)
				_, err = f.delegateConf(r, env)
			}
			spectest.WantError(t, err, "routes", spec.CodeConfig)
		})
	}
}
