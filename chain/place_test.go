package chain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/chain"
)

// TestEntryWithoutNetNS has entries as libcni before 1.2 writes them: a GC that
// keeps what is alive must find the namespace in the result, and must not
// take for dead what it cannot find.
func TestEntryWithoutNetNS(t *testing.T) {
	tests := map[string]struct {
		interfaces string
		live       bool
	}{
		"alive":           {`{"name":"br0"},{"name":"eth0","sandbox":"` + ownNS + `"}`, true},
		"dead":            {`{"name":"br0"},{"name":"eth0","sandbox":"/proc/0/ns/net"}`, false},
		"other's sandbox": {`{"name":"eth1","sandbox":"/proc/0/ns/net"}`, true},
		"no sandbox":      {`{"name":"eth0"}`, true},
		"no interface":    {``, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "rec")
			text := strings.Replace(libcniEntry(""), `"netns":"`+ownNS+`",`, "", 1)
			text = strings.Replace(text, `"ips":`, `"interfaces":[`+tt.interfaces+`],"ips":`, 1)
			dir := filepath.Join(w.Cache.Dir, "results")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "n-c-eth0"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			stale, err := w.GC(t.Context(), w.parse(cachedList), chain.Sweep{Live: true, DryRun: true})
			if err != nil || (len(stale) == 0) != tt.live {
				t.Errorf("stale: %v, %v; want alive %t", stale, err, tt.live)
			}
		})
	}
}
