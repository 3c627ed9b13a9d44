package chain_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// A container whose namespace is gone is unknown, and GET calls no plugin.
func TestGetWithoutNetNS(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"rec"}]}`)
	tg := target("c")
	tg.NetNS = filepath.Join(w.dir, "netns")
	if err := os.Symlink(ownNS, tg.NetNS); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(t.Context(), l, tg); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Get(t.Context(), l, tg); err != nil {
		t.Errorf("GET of what is there: %v", err)
	}
	w.wantCalls("ADD rec, GET rec")
	if err := os.Remove(tg.NetNS); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{tg.NetNS, ""} { // "": the recorded one
		tg.NetNS = path
		if _, err := w.Get(t.Context(), l, tg); code(err) != spec.CodeUnknown {
			t.Errorf("with %q: got %v, want code 3", path, err)
		}
	}
	tg.NetNS = "/etc/passwd"
	if _, err := w.Get(t.Context(), l, tg); code(err) != spec.CodeNetNS {
		t.Errorf("no namespace: got %v, want code 8", err)
	}
	w.wantCalls("")
}
