//go:build !no_bridge && !no_ptp

package applets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/spec"
)

// The capability dns, in both documented forms, replaces the dns of the configuration and of the
// IPAM plugin in the result. An empty one replaces nothing.
func TestKernelDNSCapability(t *testing.T) {
	h := applettest.NewHost(t)
	if err := os.WriteFile(filepath.Join(h.Dir, "resolv.conf"), []byte("nameserver 10.0.0.1\nnameserver a.name\nsearch ipam.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ keys, want string }{
		"of dns":         {`"runtimeConfig":{"dns":{"nameservers":["10.0.0.7"],"search":["pod.example"]}}`, `"dns":{"nameservers":["10.0.0.7"],"search":["pod.example"]}`},
		"of convention":  {`"runtimeConfig":{"dns":{"servers":["10.0.0.7"],"searches":["pod.example"]}}`, `"dns":{"nameservers":["10.0.0.7"],"search":["pod.example"]}`},
		"before conf's":  {`"dns":{"domain":"conf.example"},"runtimeConfig":{"dns":{"Servers":["10.0.0.7"],"Searches":null}}`, `"dns":{"nameservers":["10.0.0.7"]}`},
		"empty":          {`"runtimeConfig":{"dns":{"servers":[]}}`, `"dns":{"nameservers":["10.0.0.1"],"search":["ipam.example"]}`},
		"empty and conf": {`"dns":{"domain":"conf.example"},"runtimeConfig":{"dns":{}}`, `"dns":{"domain":"conf.example"}`},
	} {
		for _, plugin := range []string{"bridge", "ptp"} {
			p := h.Container("ctr")
			conf := `{"cniVersion":"1.1.0","name":"demo","type":"` + plugin + `",` + tt.keys + `,
				"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","resolvConf":"$DIR/resolv.conf"}}`
			got := strings.Join(strings.Fields(h.Must(spec.Add, plugin, conf, p)), "")
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s, %s: got %s, want %s", plugin, name, got, tt.want)
			}
			h.Must(spec.Del, plugin, conf, p)
		}
	}
	p := h.Container("ctr")
	none := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","runtimeConfig":{"dns":{"servers":["10.0.0.7"]}}}`
	if got := h.Must(spec.Add, "bridge", none, p); !strings.Contains(got, "10.0.0.7") {
		t.Errorf("without IPAM: %s", got)
	}
	h.Must(spec.Del, "bridge", none, p)
}
