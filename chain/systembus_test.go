package chain_test

import (
	"context"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A built-in plugin gets the address of the system bus in the environment.
func TestInProcessSystemBus(t *testing.T) {
	seen := ""
	verbs := spec.Plugin{Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) {
		seen = r.Call.SystemBus
		return &spec.Result{}, nil
	}}
	local := &chain.Invoker{
		Lookup:  func(string) (spec.Plugin, bool) { return verbs, true },
		Environ: []string{"PATH=/bin", spec.SystemBusEnv + "=unix:path=/a"},
	}
	for bus, want := range map[string]string{"": "unix:path=/a", "unix:path=/b": "unix:path=/b"} {
		r, err := spec.NewRequest(spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: ownNS, SystemBus: bus},
			[]byte(`{"name":"n","type":"x","cniVersion":"1.0.0"}`))
		if err == nil {
			_, err = local.Invoke(t.Context(), "x", r)
		}
		if err != nil || seen != want {
			t.Errorf("%q: the plugin sees %q, %v", bus, seen, err)
		}
	}
}
