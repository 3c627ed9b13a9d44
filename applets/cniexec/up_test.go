package cniexec

import (
	"slices"
	"testing"

	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
)

// In a namespace links are added in the order of the file, and on a network those that ask for an
// address first; where both is impossible, the address counts. What exists is not added.
func TestAttachOrder(t *testing.T) {
	link := func(key, network string, asks bool) *wantedLink {
		w := &wantedLink{key: key, asked: new(asked), Network: sandbox.Network{List: &chain.List{Name: network}}}
		if asks {
			w.asked.ips = askedValues{{value: "10.1.0.2"}}
		}
		return w
	}
	there := link("there", "one", true)
	there.existing = new(chain.Entry)
	for name, tt := range map[string]struct {
		wanted map[string][]*wantedLink
		want   []string
	}{
		"none":           {nil, nil},
		"as in the file": {map[string][]*wantedLink{"a": {link("a0", "one", false), link("a1", "two", true)}, "b": {link("b0", "one", false)}}, []string{"a0", "a1", "b0"}},
		"asked first":    {map[string][]*wantedLink{"a": {link("a0", "one", false), link("a1", "two", false)}, "b": {link("b0", "one", true)}}, []string{"b0", "a0", "a1"}},
		"behind another": {map[string][]*wantedLink{"a": {link("a0", "one", false)}, "b": {link("b0", "two", false), link("b1", "one", true)}}, []string{"b0", "b1", "a0"}},
		"itself":         {map[string][]*wantedLink{"a": {link("a0", "one", false), link("a1", "one", true)}}, []string{"a1", "a0"}},
		"both ways": {map[string][]*wantedLink{"a": {link("a0", "one", false), link("a1", "two", true)}, "b": {link("b0", "two", false), link("b1", "one", true)}},
			[]string{"a1", "b0", "b1", "a0"}},
		"it exists": {map[string][]*wantedLink{"a": {link("a0", "one", false)}, "b": {there}}, []string{"a0"}},
	} {
		var got []string
		for _, w := range attachOrder([]string{"a", "b"}, tt.wanted) {
			got = append(got, w.key)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
