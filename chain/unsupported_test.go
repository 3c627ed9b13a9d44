package chain_test

import (
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// since040 makes rec-fw a built-in plugin for 0.4.0 and later, like firewall.
func since040(w *fixture) {
	w.local.Lookup = func(name string) (spec.Plugin, bool) {
		return spec.Plugin{Facts: spec.Facts{Since: spec.V040}}, name == "rec-fw"
	}
}

// If the runtime or a built-in plugin does not support the version of a list, no plugin runs, and
// neither a cache entry nor a lock file is created.
func TestAddUnsupported(t *testing.T) {
	tests := map[string]string{
		"version of the future":         `{"name":"n","cniVersion":"9.9.9","plugins":[{"type":"rec"}]}`,
		"version never released":        `{"name":"n","cniVersion":"0.5.0","plugins":[{"type":"rec"}]}`,
		"not the version's exact text":  `{"name":"n","cniVersion":"1.0","plugins":[{"type":"rec"}]}`,
		"too old for the second plugin": `{"name":"n","cniVersion":"0.3.1","plugins":[{"type":"rec"},{"type":"rec-fw"}]}`,
		"too old for the IPAM plugin":   `{"name":"n","cniVersion":"0.3.1","plugins":[{"type":"rec","ipam":{"type":"rec-fw"}}]}`,
	}
	for name, doc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec", "rec-fw")
			since040(w)
			l := w.parse(doc)
			_, err := w.Add(t.Context(), l, target("c"))
			wantErr(t, err, "incompatible")
			wantErr(t, err, `config is "`+l.CNIVersion+`"`)
			if code(err) != spec.CodeVersion {
				t.Errorf("got code %d, want %d", code(err), spec.CodeVersion)
			}
			w.wantCalls("")
			if _, err := os.Stat(w.Cache.Dir); err == nil {
				t.Error("the cache was created")
			}
		})
	}
}

// If an external plugin refuses the version in ADD and in the following DEL, nothing is left to
// delete.
func TestAddUnsupportedExternal(t *testing.T) {
	const refuses = `fail {\"code\":1,\"msg\":\"incompatible CNI versions\"}`
	w := newFixture(t, "rec", "rec-x")
	_, err := w.Add(t.Context(), w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"},{"type":"rec-x","do":"`+refuses+`"}]}`), target("c"))
	wantErr(t, err, "incompatible")
	if e := spec.AsError(err); e.Details != "" {
		t.Errorf("got details %q, want none", e.Details)
	}
	w.wantCalls("ADD rec, ADD rec-x, DEL rec-x, DEL rec")
	if names := w.entries(); len(names) > 0 {
		t.Errorf("the cache has %q", names)
	}
}

// If the list of an interrupted ADD cannot be run, DEL and GC use the present configuration.
func TestInterruptedAddUnsupported(t *testing.T) {
	lists := map[string]string{
		"version of the future": `{"name":"n","cniVersion":"9.9.9","plugins":[{"type":"rec"}]}`,
		"no version":            `{"name":"n","cniVersion":"junk","plugins":[{"type":"rec"}]}`,
		"too old for a plugin":  `{"name":"n","cniVersion":"0.3.1","plugins":[{"type":"rec"},{"type":"rec-fw"}]}`,
	}
	const mended = `{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"rec-y"}]}`
	for name, doc := range lists {
		for _, verb := range []string{"del", "gc --all", "gc", "add"} {
			t.Run(name+", "+verb, func(t *testing.T) {
				w := newFixture(t, "rec", "rec-fw", "rec-y")
				since040(w)
				if !strings.Contains(doc, "0.3.1") { // recorders accept any version
					doc = strings.ReplaceAll(doc, `{"type":"rec"}`, `{"type":"rec","do":"fail {\"code\":1,\"msg\":\"incompatible CNI versions\"}"}`)
				}
				err := w.Cache.Begin(&chain.Entry{
					ContainerID: "c", IfName: "eth0", NetworkName: "n", NetNS: ownNS, Config: []byte(doc), BootID: state.BootID(),
				})
				if err != nil {
					t.Fatal(err)
				}
				l, left := w.parse(mended), 0
				switch verb {
				case "del":
					err = w.Del(t.Context(), l, target("c"))
				case "gc --all":
					_, err = w.GC(t.Context(), l, chain.GCOptions{})
				case "gc":
					_, err = w.GC(t.Context(), l, chain.GCOptions{Live: true})
				case "add":
					_, err = w.Add(t.Context(), l, target("c"))
					left = 1
				}
				if err != nil {
					t.Error(err)
				}
				// If the recorded list runs, DEL need not use the present one.
				if _, calls := w.records(); !strings.Contains(calls, "DEL rec-y") && !strings.Contains(doc, "0.3.1") {
					t.Errorf("the present configuration was not used: %s", calls)
				}
				if names := w.entries(); len(names) != left {
					t.Errorf("the cache has %q, want %d entries", names, left)
				}
			})
		}
		// With the same configuration again, DEL succeeds, since an ADD that every plugin refuses
		// makes nothing.
		t.Run(name+", as it was", func(t *testing.T) {
			w := newFixture(t, "rec", "rec-fw")
			since040(w)
			if err := w.Cache.Begin(&chain.Entry{ContainerID: "c", IfName: "eth0", NetworkName: "n", Config: []byte(doc)}); err != nil {
				t.Fatal(err)
			}
			if err := w.Del(t.Context(), w.parse(doc), target("c")); err != nil {
				t.Error(err)
			}
			if names := w.entries(); len(names) > 0 {
				t.Errorf("the cache has %q", names)
			}
		})
	}
}
