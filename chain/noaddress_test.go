package chain_test

import (
	"testing"

	"github.com/cnibox/cnibox/chain"
)

// The specification allows results without addresses in all versions, as of loopback at 0.1.0 and
// 0.2.0.
func TestResultWithoutAddress(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, answer := range []string{
			`{\"cniVersion\":\"` + version + `\",\"dns\":{}}`,
			`{\"cniVersion\":\"` + version + `\"}`,
			`{}`,
		} {
			t.Run(version+" "+answer, func(t *testing.T) {
				w := newFixture(t, "rec", "rec-2")
				l := w.parse(`{"name":"n","cniVersion":"` + version + `","plugins":[{"type":"rec","doADD":"print ` + answer + `"},{"type":"rec-2"}]}`)
				res, err := w.Add(t.Context(), l, target("c"))
				if err != nil {
					t.Fatal(err)
				}
				calls := w.wantCalls("ADD rec, ADD rec-2")
				if prev := member(t, calls[1].Stdin, "prevResult"); member(t, prev, "cniVersion") != `"`+version+`"` {
					t.Errorf("prevResult of the second plugin: %s", prev)
				}
				// The second plugin, a recorder, returns its prevResult.
				if len(res.IPs) != 0 {
					t.Errorf("got %+v, want no addresses", res)
				}
				if err := w.Del(t.Context(), l, chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNSOverride: true}); err != nil {
					t.Error(err)
				}
				w.wantCalls("DEL rec-2, DEL rec")
				if names := w.entries(); len(names) != 0 {
					t.Errorf("the cache has %q", names)
				}
			})
		}
	}
}
