package spec

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	type inner struct {
		Embedded bool `json:"embedded"`
	}
	type conf struct {
		inner
		List []struct {
			VLAN uint16 `json:"vlan"`
		}
		Map    map[string]bool
		Bridge string
		MTU    int
		VLAN   uint16 `json:"vlan"`
		Range  struct{ Start netip.Addr }
		Hair   bool `json:"hairpinMode"`
	}
	tests := map[string]string{
		`{"name":"n"}`:                                  "",
		`{"name":"n","BRIDGE":"b","mtu":9}`:             "",
		`{"name":"n","bridge":1}`:                       `"bridge" is a number where a string is expected`,
		`{"name":"n","mtu":"9"}`:                        `"mtu" is`,
		`{"name":"n","mtu":1.5}`:                        `"mtu" is a number 1.5 where an integer is expected`,
		`{"name":"n","vlan":-1}`:                        `"vlan" is a number -1 where an integer of 0 or more is expected`,
		`{"name":"n","hairpinMode":"true"}`:             `"hairpinMode" is a string where a bool`,
		`{"name":"n","range":[]}`:                       `"range" is an array where an object`,
		`{"name":"n","x":1,"range":{"start":"y"}}`:      `"range.start": "y" is not an IP address`,
		`{"name":"n","range":{"START":5}}`:              `"range.START" is a number where a string is expected`,
		`{"name":"n","list":[{"vlan":1},{"vlan":"1"}]}`: `"list[1].vlan" is a string where an integer of 0 or more is expected`,
		`{"name":"n","EMBEDDED":1}`:                     `"EMBEDDED" is a number where a bool is expected`,
		`{"name":"n","mtu":"9","mtu":9}`:                `"MTU" is a string where an integer`,
		`{"name":"n","map":{"a":true,"b":1}}`:           `"map.b" is a number where a bool is expected`,
	}
	for in, text := range tests {
		t.Run(in, func(t *testing.T) {
			var c conf
			err := request(t, Add, in).Decode(&c)
			if text == "" {
				wantError(t, err, 0, "")
				return
			}
			wantError(t, err, CodeConfig, text)
		})
	}
}

// The order of precedence (docs/decisions.md): each source alone, and against the next one.
func TestMACPrecedence(t *testing.T) {
	const rc, cni, key = `"runtimeConfig":{"mac":"02:00:00:00:00:01"}`, `"args":{"cni":{"mac":"02-00-00-00-00-02"}}`, `"mac":"02:00:00:00:00:04"`
	const arg = "MAC=02:00:00:00:00:03"
	tests := map[string]struct {
		members, args string
		want          string
		code          int
	}{
		"none":             {`"x":1`, "", "", 0},
		"all":              {rc + "," + cni + "," + key, arg, "02:00:00:00:00:01", 0},
		"capitals":         {`"RuntimeConfig":{"Mac":"02:00:00:00:00:01"},` + key, arg, "02:00:00:00:00:01", 0},
		"args.cni":         {cni + "," + key, arg, "02:00:00:00:00:02", 0},
		"CNI_ARGS":         {key, arg, "02:00:00:00:00:03", 0},
		"key":              {key, "", "02:00:00:00:00:04", 0},
		"empty is ignored": {`"runtimeConfig":{"mac":""},` + key, "MAC=", "02:00:00:00:00:04", 0},
		"InfiniBand":       {`"mac":"80:00:02:08:fe:80:00:00:00:00:00:00:02:03:c9:03:00:31:70:f1"`, "", "80:00:02:08:fe:80:00:00:00:00:00:00:02:03:c9:03:00:31:70:f1", 0},
		"multicast":        {`"mac":"01:00:5e:00:00:01"`, "", "multicast", CodeConfig},
		"zero":             {`"mac":"00:00:00:00:00:00"`, "", "MAC address of an interface", CodeConfig},
		"8 octets":         {`"mac":"02:00:00:00:00:00:00:01"`, "", "6 octets", CodeConfig},
		"junk":             {`"runtimeConfig":{"mac":"x"}`, "", `runtimeConfig.mac: "x" is not`, CodeConfig},
		"bad CNI_ARGS":     {`"x":1`, "MAC=x", `CNI_ARGS: MAC: "x"`, CodeEnv},
		"a number":         {`"runtimeConfig":{"mac":1}`, "", `"runtimeConfig.mac" is a number`, CodeConfig},
		"other args":       {`"args":{"podman_labels":[1],"cni":{"labels":[]}}`, "", "", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mac, err := request(t, Add, `{"name":"n",`+tt.members+`}`, "CNI_ARGS", tt.args).MAC()
			wantError(t, err, tt.code, tt.want)
			if tt.code == 0 && mac.String() != tt.want {
				t.Errorf("got %s, want %s", mac, tt.want)
			}
		})
	}
}

// The configuration for an external plugin has all keys except those of the protocol, and unchanged
// numbers.
func TestWireKeepsKeys(t *testing.T) {
	r := request(t, Add, `{"name":"n", "cniVersion":"0.4.0", "big":9007199254740993, "f":1.10, "t":"<\u00e4>", "d":1,"d":2,`+
		` "PrevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"a","mtu":1400}],"x":{"y":1.0}}, "z":[ 1 ]}`)
	got, err := r.Wire()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"big":9007199254740993,"cniVersion":"0.4.0","d":2,"f":1.10,"name":"n",` +
		`"prevResult":{"cniVersion":"0.4.0","dns":{},"interfaces":[{"name":"a"}],"x":{"y":1.0}},"t":"\u003c\u00e4\u003e","z":[1]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.Prev = nil
	if got, err = r.Wire(); err != nil || strings.Contains(strings.ToLower(string(got)), "prevresult") {
		t.Errorf("without one: got %s, %v", got, err)
	}
}

// Before 0.3.0 a prevResult without an address is passed as well.
func TestWireOfOldVersion(t *testing.T) {
	r := request(t, Add, `{"name":"n","cniVersion":"0.2.0","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"lo"}]}}`)
	got, err := r.Wire()
	if want := `{"cniVersion":"0.2.0","name":"n","prevResult":{"cniVersion":"0.2.0","dns":{}}}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

func TestWireOfGC(t *testing.T) {
	r := request(t, GC, `{"name":"n","cniVersion":"1.1.0","cni.dev/valid-attachments":null}`)
	r.Valid = append(r.Valid, Attachment{"n", "c1", "eth0"})
	b, err := r.Wire()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{keyValid, keyAttached} {
		again, err := NewRequest(r.Call, b)
		if err != nil || len(again.Valid) != 1 || again.Valid[0] != r.Valid[0] || got[key] == nil {
			t.Errorf("%s: got %s, %v", key, b, err)
		}
	}
}
