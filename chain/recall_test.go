package chain_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/chain"
)

// If the list of a failed ADD cannot be run at DEL, the present configuration is used, and a plugin
// that refuses it (code 7) is ignored. After a successful ADD neither holds.
func TestListCannotRunAtDel(t *testing.T) {
	const (
		fails    = `"doADD":"fail {\"code\":102,\"msg\":\"no\"}"`
		refuses  = `"doDEL":"fail {\"code\":7,\"msg\":\"refused\"}"`
		busy     = `"doDEL":"fail {\"code\":100,\"msg\":\"busy\"}"`
		old, now = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"},{"type":"rec-x",`, `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec-y"}]}`
	)
	tests := map[string]struct {
		more    string // members of the second plugin
		missing bool   // the second plugin is removed before DEL
		present string // corrected configuration; "": none
		calls   string
		err     string
	}{
		"missing, corrected":            {fails + "," + busy, true, now, "DEL rec, DEL rec-y", ""},
		"missing":                       {fails + "," + busy, true, "", "DEL rec", "find plugin"},
		"refused, corrected":            {fails + "," + refuses, false, now, "DEL rec-x, DEL rec, DEL rec-y", ""},
		"refused":                       {fails + "," + refuses, false, "", "DEL rec-x, DEL rec", ""},
		"busy, corrected":               {fails + "," + busy, false, now, "DEL rec-x, DEL rec", "busy"},
		"succeeded, missing, corrected": {`"x":1`, true, now, "DEL rec", "find plugin"},
		"succeeded, refused, corrected": {refuses, false, now, "DEL rec-x, DEL rec", "refused"},
	}
	for name, tt := range tests {
		for _, verb := range []string{"del", "gc"} {
			t.Run(name+", "+verb, func(t *testing.T) {
				w := newFixture(t, "rec", "rec-x", "rec-y")
				w.KeepGoing = true
				l := w.parse(old + tt.more + "}]}")
				w.Add(t.Context(), l, target("c"))
				if names := w.entries(); len(names) != 1 {
					t.Fatalf("the cache has %q", names)
				}
				w.records()
				if tt.missing {
					os.Remove(filepath.Join(w.bin, "rec-x"))
				}
				if tt.present != "" {
					l = w.parse(tt.present)
				}
				var err error
				if verb == "gc" {
					_, err = w.GC(t.Context(), l, chain.GCOptions{})
				} else {
					err = w.Del(t.Context(), l, chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNSOverride: true})
				}
				wantErr(t, err, tt.err)
				w.wantCalls(tt.calls)
				if left := len(w.entries()) > 0; left != (tt.err != "") {
					t.Errorf("the entry is left: %t", left)
				}
			})
		}
	}
}
