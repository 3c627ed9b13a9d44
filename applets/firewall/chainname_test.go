package firewall_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// An invalid name of the administrator's chain is refused before the first change, and DEL ignores
// it.
func TestKernelFirewallChainName(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"9lives", ".", "my.admin", "-admin"} {
		err := w.verb(spec.Add, 1, `"iptablesAdminChainName":"`+name+`"`)
		if err == nil || spec.AsError(err).Code != spec.CodeConfig || !strings.Contains(err.Error(), `"iptablesAdminChainName" "`+name+`"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := w.rules(); got != "" {
		t.Errorf("a refused ADD made\n%s", got)
	}
	w.NoError(w.verb(spec.Add, 1, `"iptablesAdminChainName":"nomad-admin"`))
	w.NoError(w.verb(spec.Del, 1, `"iptablesAdminChainName":"my.admin"`))
	if got := w.owned() + w.rules(); strings.Contains(got, "admin-nomad-admin") || strings.Contains(got, "10.9.0.11") {
		t.Errorf("after DEL\n%s", got)
	}
}
