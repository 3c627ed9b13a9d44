package static_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/spec"
)

// staticConf returns a configuration with members of ipam and of the top level.
func staticConf(ipam, more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"demo","type":"macvlan"%s,"ipam":{"type":"static"%s}}`, more, ipam)
}

func wantStatic(t *testing.T, verb spec.Verb, conf, args string, code int, text string) {
	t.Helper()
	applettest.WantIPAM(t, verb, "static", "a", conf, args, code, text)
}

const (
	static4 = `,"addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]`
	static6 = `,"addresses":[{"address":"fd00::5/64","gateway":"fd00:1::1"},{"address":"10.1.0.5/24"}]`
)

func TestStaticResult(t *testing.T) {
	conf := staticConf(static6+`,"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8","gw":"fd00::1","mtu":1400}],
		"dns":{"nameservers":["1.1.1.1"],"search":["x"]}`, "")
	want := `{"cniVersion":"1.1.0","dns":{"nameservers":["1.1.1.1"],"search":["x"]},
		"ips":[{"address":"fd00::5/64","gateway":"fd00:1::1"},{"address":"10.1.0.5/24"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd00::/8","gw":"fd00::1","mtu":1400}]}`
	wantStatic(t, "ADD", conf, "", 0, want)
	wantStatic(t, "GET", conf, "", 0, want)
	wantStatic(t, "STATUS", conf, "", 0, "")
	wantStatic(t, "ADD", staticConf("", ""), "", 0, `{"cniVersion":"1.1.0"}`)
	wantStatic(t, "ADD", strings.Replace(conf, "1.1.0", "0.2.0", 1), "", 0, `"ip4":{"ip":"10.1.0.5/24"`)
}

// As in the reference, CNI_ARGS adds addresses, and args.cni and the capability replace those of
// lower precedence, gateways included.
func TestStaticSources(t *testing.T) {
	args := `,"args":{"cni":{"ips":["10.7.0.5/16"]}}`
	capability := `,"runtimeConfig":{"ips":["10.8.0.5/16","fd00:8::5/64"]}`
	own := `{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`
	const cniArgs = "IP=10.2.0.7/16, fd00:2::7/64;GATEWAY=10.2.0.1,fd00:2::1;K8S_POD_NAME=p"
	tests := map[string]struct{ conf, args, ips string }{
		"CNI_ARGS": {staticConf(static4, ""), cniArgs,
			`[` + own + `,{"address":"10.2.0.7/16","gateway":"10.2.0.1"},{"address":"fd00:2::7/64","gateway":"fd00:2::1"}]`},
		"GATEWAY is not for the configuration's": {staticConf(static4, ""), "GATEWAY=10.1.0.9", `[` + own + `]`},
		"args.cni":                               {staticConf(static4, args), cniArgs, `[{"address":"10.7.0.5/16"}]`},
		"capability":                             {staticConf(static4, args+capability), cniArgs, `[{"address":"10.8.0.5/16"},{"address":"fd00:8::5/64"}]`},
		"empty lists":                            {staticConf(static4, `,"runtimeConfig":{"ips":[]},"args":{"cni":{"ips":[]}}`), "IP=,", `[` + own + `]`},
		"the same again":                         {staticConf(static4, ""), "IP=10.1.0.5/24;GATEWAY=10.1.0.9", `[` + own + `]`},
		"gateway for one":                        {staticConf(`,"addresses":[{"address":"10.2.0.7/16"}]`, ""), cniArgs, `[{"address":"10.2.0.7/16","gateway":"10.2.0.1"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wantStatic(t, "ADD", tt.conf, tt.args, 0, `"ips":`+tt.ips) })
	}
	wantStatic(t, "ADD", staticConf(static4, ""), "GATEWAY=10.1.0.9", 0, "GATEWAY 10.1.0.9 is in the network of no address in IP")
}

func TestStaticConfig(t *testing.T) {
	tests := map[string]struct {
		conf, args string
		code       int
		text       string
	}{
		"no ipam":       {`{"cniVersion":"1.0.0","name":"demo","type":"x"}`, "", 7, "ipam"},
		"no length":     {staticConf(`,"addresses":[{"address":"10.1.0.5"}]`, ""), "", 7, `'10.1.0.5'; ipam.addresses[0].address: `},
		"no address":    {staticConf(`,"addresses":[{}]`, ""), "", 7, "got: ''; ipam.addresses[0].address"},
		"a string":      {staticConf(`,"addresses":["10.1.0.5/24"]`, ""), "", 7, "addresses"},
		"mapped":        {staticConf(`,"addresses":[{"address":"::ffff:10.1.0.5/120"}]`, ""), "", 7, "'::ffff:10.1.0.5/120'; ipam.addresses[0].address: "},
		"multicast":     {staticConf(`,"addresses":[{"address":"224.0.0.5/24"}]`, ""), "", 7, "no interface can have the address"},
		"gateway":       {staticConf(`,"addresses":[{"address":"10.1.0.5/24","gateway":"x"}]`, ""), "", 7, `invalid gateway address: x; ipam.addresses[0].gateway: `},
		"other family":  {staticConf(`,"addresses":[{"address":"10.1.0.5/24","gateway":"fd00::1"}]`, ""), "", 7, "invalid gateway address"},
		"CNI_ARGS":      {staticConf(static4, ""), "IP=10.1.0.5", 4, `'10.1.0.5'; IP`},
		"CNI_ARGS gw":   {staticConf(static4, ""), "IP=10.1.0.5/24;GATEWAY=10.1.0.1/24", 4, `invalid gateway address: 10.1.0.1/24; GATEWAY in CNI_ARGS: `},
		"args.cni":      {staticConf(static4, `,"args":{"cni":{"ips":["x"]}}`), "", 7, `'x'; args.cni.ips[0]: `},
		"capability":    {staticConf(static4, `,"runtimeConfig":{"ips":["10.1.0.5"]}`), "", 7, "runtimeConfig.ips[0]: "},
		"weaker source": {staticConf(`,"addresses":[{"address":"x"}]`, `,"runtimeConfig":{"ips":["10.1.0.5/24"]}`), "", 7, "'x'; ipam.addresses[0].address: "},
		"routes":        {staticConf(`,"routes":[{"dst":"x"}]`, ""), "", 7, "routes[0].dst"},
		"dns":           {staticConf(`,"dns":[]`, ""), "", 7, "dns"},
		"two of a family": {strings.Replace(staticConf(static4, `,"runtimeConfig":{"ips":["10.8.0.5/16","10.9.0.5/16"]}`), "1.1.0", "0.2.0", 1),
			"", 7, "0.2.0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			wantStatic(t, "ADD", tt.conf, tt.args, tt.code, tt.text)
			wantStatic(t, "DEL", tt.conf, "", 0, "")
		})
	}
	wantStatic(t, "STATUS", tests["no length"].conf, "", 7, "ipam.addresses[0].address: ")
}

// CHECK fails if prevResult does not have the address; in the reference it succeeds.
func TestStaticCheck(t *testing.T) {
	prev := func(ips string) string {
		return staticConf(static4, `,"prevResult":{"cniVersion":"1.1.0","ips":[`+ips+`]}`)
	}
	wantStatic(t, "CHECK", staticConf(static4, ""), "", 7, "prevResult missing")
	wantStatic(t, "CHECK", prev(`{"address":"10.1.0.5/24","gateway":"10.1.0.1"},{"address":"10.9.0.5/24"}`), "", 0, "")
	wantStatic(t, "CHECK", prev(``), "", 102, "10.1.0.5/24: prevResult")
	wantStatic(t, "CHECK", prev(`{"address":"10.1.0.5/16","gateway":"10.1.0.1"}`), "", 102, "10.1.0.5/24")
	wantStatic(t, "CHECK", prev(`{"address":"10.1.0.5/24","gateway":"10.1.0.9"}`), "", 102, "its gateway in prevResult is 10.1.0.9, not 10.1.0.1")
	wantStatic(t, "CHECK", prev(`{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`), "IP=10.3.0.5/24", 102, "10.3.0.5/24")
	wantStatic(t, "GET", prev(`{"address":"10.9.0.5/24"}`), "", 0, `"address":"10.9.0.5/24"`)
}
