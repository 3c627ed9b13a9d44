package chain_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// BenchmarkAddDel measures what the runner adds to three built-in plugins: loading the list, locks,
// cache, requests.
func BenchmarkAddDel(b *testing.B) {
	dir := b.TempDir()
	conf := `{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"bridge","isGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}},{"type":"portmap","capabilities":{"portMappings":true}},{"type":"tuning"}]}`
	if err := os.WriteFile(filepath.Join(dir, "n.conflist"), []byte(conf), 0o600); err != nil {
		b.Fatal(err)
	}
	noop := spec.Plugin{Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) {
		if r.Prev != nil {
			return r.Prev, nil
		}
		return &spec.Result{Interfaces: []spec.Interface{{Name: "eth0", Sandbox: ownNS}}}, nil
	}}
	r := &chain.Runner{
		Invoker: &chain.Invoker{Lookup: func(string) (spec.Plugin, bool) { return noop, true }},
		Cache:   &chain.Cache{Dir: filepath.Join(dir, "cni")}, Warn: func(string, ...any) {},
	}
	for b.Loop() {
		l, err := chain.Load(dir, "n")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Add(b.Context(), l, target("c")); err != nil {
			b.Fatal(err)
		}
		if err := r.Del(b.Context(), l, target("c")); err != nil {
			b.Fatal(err)
		}
	}
}
