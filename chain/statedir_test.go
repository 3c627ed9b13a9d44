package chain_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A built-in plugin gets the state directory in the environment, unless the call has one, as a
// delegate's.
func TestInProcessStateDir(t *testing.T) {
	seen := ""
	verbs := spec.Plugin{Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) {
		seen = r.Call.StateDir
		return &spec.Result{}, nil
	}}
	local := &chain.Invoker{
		Lookup:  func(string) (spec.Plugin, bool) { return verbs, true },
		Environ: []string{"PATH=/bin", spec.StateEnv + "=/a"},
	}
	for dir, want := range map[string]string{"": "/a", "/b": "/b"} {
		r, err := spec.NewRequest(spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: ownNS, StateDir: dir},
			[]byte(`{"name":"n","type":"x","cniVersion":"1.0.0"}`))
		if err == nil {
			_, err = local.Invoke(t.Context(), "x", r)
		}
		if err != nil || seen != want {
			t.Errorf("%q: the plugin sees %q, %v", dir, seen, err)
		}
	}
}

// Creating is called once, before a verb creates the directory. STATUS takes no lock and does not
// create it.
func TestCacheCreating(t *testing.T) {
	dir, calls := filepath.Join(t.TempDir(), "cache"), 0
	r := &chain.Runner{
		Invoker: &chain.Invoker{Lookup: func(string) (spec.Plugin, bool) { return spec.Plugin{}, true }},
		Cache:   &chain.Cache{Dir: dir, Creating: func() { calls++ }},
		Warn:    t.Logf,
	}
	l, err := chain.Parse([]byte(`{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"x"}]}`))
	if err == nil {
		err = r.Status(t.Context(), l)
	}
	if err != nil || calls != 0 {
		t.Fatalf("STATUS: %v, %d calls", err, calls)
	}
	for range 2 {
		if err := r.Del(t.Context(), l, chain.RuntimeConf{ContainerID: "c", IfName: "eth0"}); err != nil || calls != 1 {
			t.Fatalf("DEL: %v, %d calls", err, calls)
		}
	}
}
