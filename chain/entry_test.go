package chain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/chain"
)

// Entries of libcni before 1.2 have no namespace: GC with Live takes it from the result, and keeps
// the attachment if that has none. DEL and CHECK use the same namespace.
func TestEntryWithoutNetNS(t *testing.T) {
	const gone = "/proc/0/ns/net"
	tests := map[string]struct {
		interfaces string
		live       bool
		netns      string // passed to DEL
		check      string // error of CHECK; "": none
	}{
		"alive":           {`{"name":"br0"},{"name":"eth0","sandbox":"` + ownNS + `"}`, true, ownNS, ""},
		"dead":            {`{"name":"br0"},{"name":"eth0","sandbox":"` + gone + `"}`, false, gone, "open netns"},
		"other's sandbox": {`{"name":"eth1","sandbox":"` + gone + `"}`, true, "", "not on record"},
		"no sandbox":      {`{"name":"eth0"}`, true, "", "not on record"},
		"no interface":    {``, true, "", "not on record"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, "rec")
			text := strings.Replace(libcniEntry(""), `"netns":"`+ownNS+`",`, "", 1)
			text = strings.Replace(text, `"ips":`, `"interfaces":[`+tt.interfaces+`],"ips":`, 1)
			dir := filepath.Join(w.Cache.Dir, "results")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "n-c-eth0"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			stale, err := w.GC(t.Context(), w.parse(cachedList), chain.GCOptions{Live: true, DryRun: true})
			if err != nil || (len(stale) == 0) != tt.live {
				t.Errorf("stale: %v, %v; want alive %t", stale, err, tt.live)
			}
			bare := chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNSOverride: true}
			wantErr(t, w.Check(t.Context(), w.parse(cachedList), bare), tt.check)
			w.records()
			if err := w.Del(t.Context(), w.parse(cachedList), bare); err != nil {
				t.Fatal(err)
			}
			if calls := w.wantCalls("DEL rec"); calls[0].NetNS != tt.netns {
				t.Errorf("DEL: namespace %q, want %q", calls[0].NetNS, tt.netns)
			}
		})
	}
}
