package lint_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/chain"
)

// ADD names the file, the line and the column that lint names, for all that plugins refuse.
func TestADDNamesPlaceOfLint(t *testing.T) {
	for _, plugin := range slices.Sorted(maps.Keys(applettest.Plugins)) {
		p := applettest.Plugins[plugin]
		for _, invalid := range p.Invalid {
			file := filepath.Join(t.TempDir(), "net.conflist")
			doc := strings.ReplaceAll(listOf(t, p.After, plugin, invalid), "$DIR", t.TempDir())
			if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
				t.Fatal(err)
			}
			err := addError(file)
			if err == nil { // only the host or the kernel refuses it
				continue
			}
			found, lerr := (&lint.Linter{Applets: applets.All()}).Files(file)
			if lerr != nil {
				t.Fatal(lerr)
			}
			if !slices.ContainsFunc(found, func(f *lint.Finding) bool { return strings.Contains(err.Error(), f.Place()) }) {
				t.Errorf("%s with %s: %v\nlint: %v", plugin, invalid, err, found)
			}
		}
	}
}

// listOf returns a list with a plugin, some of whose members are replaced.
func listOf(t *testing.T, after, plugin, members string) string {
	t.Helper()
	var plugins []map[string]json.RawMessage
	for _, name := range []string{after, plugin} {
		if name == "" {
			continue
		}
		conf := map[string]json.RawMessage{}
		texts := []string{applettest.Plain(name, "net")}
		if name == plugin {
			texts = append(texts, "{"+members+"}")
		}
		for _, text := range texts {
			if err := json.Unmarshal([]byte(text), &conf); err != nil {
				t.Fatal(err)
			}
		}
		plugins = append(plugins, conf)
	}
	doc, err := json.MarshalIndent(map[string]any{"cniVersion": "1.1.0", "name": "net", "plugins": plugins}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// addError returns the error that an ADD of the network in a file would have before it opens anything.
func addError(file string) error {
	l, err := chain.LoadFile(file)
	if err != nil {
		return err
	}
	r := chain.Runner{Invoker: &chain.Invoker{Lookup: applets.All().Plugin}, Warn: func(string, ...any) {}}
	return r.Validate(l, chain.RuntimeConf{ContainerID: "c1", IfName: "eth0", NetNS: "/run/netns/c1"})
}
