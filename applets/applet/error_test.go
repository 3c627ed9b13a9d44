package applet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

// An error with code 4 has the text of the reference in msg, and names the variable and its value.
// It has the cniVersion of the configuration, which is read for that only.
func TestServeBadVariable(t *testing.T) {
	for _, tt := range []struct{ variable, value, msg string }{
		{"CNI_CONTAINERID", "a/b", "containerID"},
		{"CNI_CONTAINERID", strings.Repeat("c", 256), "containerID is too long"},
		{"CNI_IFNAME", "a/b", "whitespace"},
		{"CNI_IFNAME", "0123456789abcdef", "too long"},
		{"CNI_IFNAME", "..", ". or .."},
		{"CNI_IFNAME", "", "required env variables [CNI_IFNAME] missing"},
		{"CNI_ARGS", "none", `ARGS: invalid pair "none"`},
		{"CNI_ARGS", "IgnoreUnknown=yes", `ARGS: IgnoreUnknown "yes" is neither true nor false`},
		{"CNI_COMMAND", "Add", "unknown CNI_COMMAND: Add"},
	} {
		for _, version := range []string{"0.4.0", "1.0.0"} {
			reads := addApplet(func(*spec.Request) (*spec.Result, error) { return &spec.Result{}, nil })
			verbs := reads.Plugin()
			verbs.Args = true
			reads.Plugin = func() spec.Plugin { return verbs }
			_, out, _ := serve(call{verb: "ADD", applet: reads, env: map[string]string{tt.variable: tt.value},
				stdin: strings.NewReader(`{"cniVersion":"` + version + `","name":"n"}`)})
			var e struct {
				CNIVersion, Msg, Details string
				Code                     int
			}
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			whole := e.Msg + "; " + e.Details
			named := strings.Contains(whole, tt.variable) && strings.Contains(whole, tt.value)
			if e.Code != spec.CodeEnv || !strings.Contains(e.Msg, tt.msg) || e.CNIVersion != version || !named {
				t.Errorf("%s=%.20s: %+v", tt.variable, tt.value, e)
			}
		}
	}
}

// A bad variable is reported even if nothing arrives on stdin.
func TestServeBadVariableWithoutStdin(t *testing.T) {
	code, out, _ := serve(call{verb: "ADD", applet: addApplet(nil), env: map[string]string{"CNI_IFNAME": "a/b"}, stdin: pipe(t, "")})
	if code != 1 || !strings.Contains(out, `"code": 4`) || !strings.Contains(out, `"cniVersion": "1.1.0"`) {
		t.Errorf("got %d, %s", code, out)
	}
}

// Codes 50 and 51 are reserved for STATUS: for other verbs they are replaced, also those of a
// delegate.
func TestServeStatusCodes(t *testing.T) {
	for _, code := range []int{spec.CodeNotReady, spec.CodeLimited} {
		lacks := fmt.Errorf("forwarding: %w", &spec.Error{Code: code, Msg: "off", Details: "set it", Err: os.ErrPermission})
		fails := func(context.Context, *spec.Request) error { return lacks }
		fail := func(context.Context, *spec.Request) (*spec.Result, error) { return nil, lacks }
		a := applet.Applet{Plugin: func() spec.Plugin {
			return spec.Plugin{Add: fail, Get: fail, Check: fails, Del: fails, GC: fails, Status: fails}
		}}
		for _, verb := range []string{"ADD", "CHECK", "DEL", "GET", "GC", "STATUS"} {
			want := spec.CodeHost
			if verb == "STATUS" {
				want = code
			}
			_, out, _ := serve(call{verb: verb, applet: a, stdin: strings.NewReader(
				`{"cniVersion":"1.1.0","name":"n","prevResult":{},"cni.dev/valid-attachments":[]}`)})
			var e spec.Error
			if err := json.Unmarshal([]byte(out), &e); err != nil || e.Code != want || e.Msg != "forwarding: off" || e.Details != "set it" {
				t.Errorf("%s: got %s, want code %d", verb, out, want)
			}
		}
	}
}

// An error about a key names it: in details if msg is a phrase of the reference without it.
func TestServeNamesKey(t *testing.T) {
	for key, want := range map[string]string{"ipam.ranges[0][0].gateway": `see "ipam.ranges[0][0].gateway"`, "phrase": "", "": ""} {
		_, out, _ := serve(call{verb: "ADD", applet: addApplet(func(*spec.Request) (*spec.Result, error) {
			return nil, spec.Errorf(spec.CodeConfig, "a known phrase").AtKey(key)
		})})
		var e struct{ Msg, Details string }
		if err := json.Unmarshal([]byte(out), &e); err != nil || e.Msg != "a known phrase" || e.Details != want {
			t.Errorf("%q: got %s (%v), want the details %q", key, out, err, want)
		}
	}
}
