package firewall

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// Errors have code 7 and are returned before the first change. The reference uses its default for
// an unknown backend, and adds rules before it checks the policy.
func TestFirewallConf(t *testing.T) {
	for name, tt := range map[string]struct{ conf, want string }{
		"nothing":           {`{}`, ""},
		"podman":            {`{"backend":""}`, ""},
		"all keys":          {`{"backend":"firewalld","iptablesAdminChainName":"MY-ADMIN_1x","firewalldZone":"public","ingressPolicy":"same-bridge","dbusSocket":"/x"}`, ""},
		"open":              {`{"backend":"nftables","ingressPolicy":"open"}`, ""},
		"isolated":          {`{"backend":"iptables","ingressPolicy":"isolated"}`, ""},
		"longest chain":     {`{"iptablesAdminChainName":"` + strings.Repeat("A", 28) + `"}`, ""},
		"backend":           {`{"backend":"ipfw"}`, `unrecognized backend "ipfw"`},
		"case of a backend": {`{"backend":"Firewalld"}`, "unrecognized backend"},
		"policy":            {`{"ingressPolicy":"closed"}`, `policy: "closed"`},
		"chain too long":    {`{"iptablesAdminChainName":"` + strings.Repeat("A", 29) + `"}`, "iptablesAdminChainName"},
		"chain of signs":    {`{"iptablesAdminChainName":"a b"}`, "iptablesAdminChainName"},
		"option":            {`{"iptablesAdminChainName":"-F"}`, "iptablesAdminChainName"},
		"loop":              {`{"iptablesAdminChainName":"CNI-FORWARD"}`, "needs a chain of its own"},
		"target":            {`{"iptablesAdminChainName":"DROP"}`, "needs a chain of its own"},
		"zone":              {`{"firewalldZone":"a\u0000b"}`, "firewalldZone"},
		"socket":            {`{"dbusSocket":"bus"}`, "absolute path"},
		"type":              {`{"backend":7}`, "backend"},
	} {
		t.Run(name, func(t *testing.T) {
			err := frame.Read(spectest.Request(t, spec.Add, tt.conf, ""), &conf{})
			code := spec.CodeConfig
			if name == "type" {
				code = spec.AsError(err).Code
			}
			spectest.WantError(t, err, tt.want, code)
		})
	}
}

// "backend": "iptables" is valid and causes one warning that explains it.
func TestFirewallWarnsOfIptables(t *testing.T) {
	for backend, want := range map[string]int{"iptables": 1, "nftables": 0, "": 0} {
		r := spectest.Request(t, spec.Add, `{"backend":"`+backend+`"}`, "")
		got := 0
		r.Warn = func(string, ...any) { got++ }
		if err := frame.Read(r, &conf{}); err != nil || got != want {
			t.Errorf("%q: %d warnings, %v", backend, got, err)
		}
	}
}

func TestKernelFirewallReadsPrevResult(t *testing.T) {
	for name, tt := range map[string]struct {
		conf, prev  string
		ips, bridge string
		err         string
	}{
		"open": {`{}`, `"interfaces":[{"name":"br0"}],"ips":[{"address":"10.1.0.2/24"},{"address":"fd00::2/64"},{"address":"10.1.0.2/32"}]`,
			"10.1.0.2 fd00::2", "", ""},
		"no interface": {`{"ingressPolicy":"same-bridge"}`, `"ips":[{"address":"10.1.0.2/24"}]`, "10.1.0.2", "", "ingress policy"},
		"no name":      {`{"ingressPolicy":"same-bridge"}`, `"interfaces":[{"name":"a/b"}]`, "", "", "ingress policy"},
	} {
		t.Run(name, func(t *testing.T) {
			r := spectest.Request(t, spec.Add, tt.conf[:len(tt.conf)-1]+sep(tt.conf)+`"prevResult":{"cniVersion":"1.1.0",`+tt.prev+`}}`, "")
			c := &conf{}
			err := frame.Read(r, c)
			p := c.plan
			if err == nil {
				err = kerneltest.NS(t).Do(func() error { return p.readPrevResult(r.Call.Session, r.Prev, spec.CodeConfig) })
			}
			spectest.WantError(t, err, tt.err, spec.CodeConfig)
			var ips []string
			for _, ip := range p.ips {
				ips = append(ips, ip.String())
			}
			if got := strings.Join(ips, " "); got != tt.ips || p.bridge != tt.bridge || len(p.ports) > 0 {
				t.Errorf("got %q, bridge %q, ports %v", got, p.bridge, p.ports)
			}
		})
	}
}

// sep returns the separator before another member of an object.
func sep(object string) string {
	if object == "{}" {
		return ""
	}
	return ","
}
