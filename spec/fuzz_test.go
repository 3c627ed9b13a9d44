package spec

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cnibox/cnibox/internal/schematest"
)

// The wire form of an accepted request is parsed to the same request.
func FuzzNewRequest(f *testing.F) {
	f.Add("ADD", []byte(seedConf), "IP=1;X")
	f.Add("GC", []byte(`{"name":"n","cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`), "")
	f.Add("DEL", []byte(`{"name":5,"cniVersion":[],"type":"../x","ipam":[],"dns":{"nameservers":[1]},"args":{"cni":[]},"prevResult":{"ips":[null]}}`), "none")
	f.Add("ADD", []byte(`{"name":"n","cniVersion":"1.0.0","runtimeConfig":{"dns":{"servers":["10.0.0.1"]}},"args":{"cni":{"labels":[{"key":"a"}],"aliases":{"n":["a"]}}},
		"prevResult":{"interfaces":[{"name":"a","mac":"0a:00:00:01"}],"ips":[{"address":"10.0.0.1/8","interface":9}],"routes":[{"dst":"::/0","mtu":68}]}}`), "")
	f.Add("CHECK", []byte(`{"name":"n","cniVersion":"0.2.0","prevResult":{"ip4":{"ip":"10.0.0.1/8"}},"mac":"x"}`), "MAC=y")
	f.Fuzz(func(t *testing.T, verb string, conf []byte, args string) {
		c := Call{Verb: Verb(verb), ContainerID: "c1", NetNS: "/n", IfName: "eth0", Args: args}
		r, err := NewRequest(c, conf)
		if err != nil {
			if code := AsError(err).Code; code != CodeDecode && code != CodeConfig && code != CodeEnv {
				t.Errorf("code %d: %v", code, err)
			}
			return
		}
		r.MAC()
		r.CheckIndexes()
		r.Invoker = external(nil)
		WarnUnknownArgs(r)
		var own struct{ Bridge, MTU, IPAM, Args any }
		if err := r.Decode(&own); err != nil {
			t.Errorf("decode: %v", err)
		}
		(Plugin{}).Do(t.Context(), r)
		wire, err := r.Wire()
		if err != nil {
			t.Fatalf("wire: %v", err)
		}
		again, err := NewRequest(c, wire)
		if err != nil {
			t.Fatalf("read back %s: %v", wire, err)
		}
		if again.Net.Name != r.Net.Name || again.Net.Version != r.Net.Version || len(again.Valid) != len(r.Valid) || (again.Prev == nil) != (r.Prev == nil) {
			t.Errorf("got %+v of %s\nwant %+v", again, wire, r)
		}
	})
}

// The encoding of a parsed result in each version is parsed to the same result.
func FuzzParseResult(f *testing.F) {
	f.Add([]byte(seedResult))
	for _, doc := range []string{richA, richB, richD} {
		for _, v := range []string{"0.2.0", "0.3.0", "0.4.0", "1.1.0"} {
			f.Add([]byte(strings.Replace(doc, `"V"`, `"`+v+`"`, 1)))
		}
	}
	f.Add([]byte(`{"cniVersion":"0.3.0","ip":[{"address":"::ffff:1.2.3.4/97","interface":-1}],"x":[{"y":null}],"\u0066":"\ud800"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := ParseResult(doc, V110)
		if err != nil {
			return
		}
		for _, v := range versions {
			first, err := r.Encode(v)
			if err != nil {
				continue
			}
			again, err := ParseResult(first, V110)
			if err != nil {
				t.Fatalf("%s: read back %s: %v", v, first, err)
			}
			second, err := again.Encode(v)
			if err != nil || !bytes.Equal(first, second) {
				t.Errorf("%s: got %s, %v\nwant %s", v, second, err, first)
			}
		}
		schematest.CheckResult(doc)
	})
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IP=10.0.0.1;K8S_POD_NAME=a=b;IgnoreUnknown=1;;")
	f.Fuzz(func(t *testing.T, s string) {
		args, err := ParseArgs(s)
		if err != nil {
			wantError(t, err, CodeEnv, "ARGS: ")
			return
		}
		var pairs []string
		for k, v := range args {
			if strings.Contains(k, "=") || strings.Contains(k+v, ";") {
				t.Errorf("%q became %q=%q", s, k, v)
			}
			pairs = append(pairs, k+"="+v)
		}
		again, err := ParseArgs(strings.Join(pairs, ";"))
		if err != nil || len(again) != len(args) {
			t.Errorf("%q: got %q, %v, want %q", s, again, err, args)
		}
	})
}

// A merged object has the new member, lacks the removed one, and keeps the others.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(seedConf), "name", []byte(`"x"`), "ipam")
	f.Add([]byte(`{"a":{"b":"}\""},"A":[1e5,{"c":[]}],"\u0061":null}`), "z", []byte(` [ 1 ] `), "a")
	f.Fuzz(func(t *testing.T, obj []byte, key string, value []byte, remove string) {
		out, err := Merge(obj, map[string]any{key: json.RawMessage(value)}, remove)
		if err != nil || !utf8.ValidString(key+remove) {
			return // keys are constants of the program, in UTF-8
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(obj, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%s became %s", obj, out)
		}
		for k, v := range before {
			if strings.EqualFold(k, key) || strings.EqualFold(k, remove) {
				continue
			}
			if want, _ := json.Marshal(v); !bytes.Equal(after[k], want) {
				t.Errorf("%q: got %s, want %s", k, after[k], v)
			}
		}
		for k := range after {
			if strings.EqualFold(k, remove) && !strings.EqualFold(k, key) {
				t.Errorf("%q is still in %s", k, out)
			}
		}
	})
}
