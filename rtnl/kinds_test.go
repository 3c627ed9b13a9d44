package rtnl_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/rtnl"
)

// The name of a mode is parsed and formatted alike, "" is the default, and the error for an invalid
// name has the words of the reference.
func TestModeNames(t *testing.T) {
	kinds := map[string]struct {
		parse func(string) (string, error)
		names []string // first the default
	}{
		"macvlan mode": {func(s string) (string, error) { m, err := rtnl.ParseMacvlanMode(s); return m.String(), err },
			[]string{"bridge", "private", "vepa", "passthru"}},
		"ipvlan mode": {func(s string) (string, error) { m, err := rtnl.ParseIpvlanMode(s); return m.String(), err },
			[]string{"l2", "l3", "l3s"}},
		"ipvlan flag": {func(s string) (string, error) { f, err := rtnl.ParseIpvlanFlag(s); return f.String(), err },
			[]string{"bridge", "private", "vepa"}},
	}
	for what, k := range kinds {
		for _, name := range k.names {
			if got, err := k.parse(name); got != name || err != nil {
				t.Errorf("%s %s: got %s, %v", what, name, got, err)
			}
		}
		if got, err := k.parse(""); got != k.names[0] || err != nil {
			t.Errorf("%s by default: got %s, %v; want %s", what, got, err, k.names[0])
		}
		if _, err := k.parse("L2"); err == nil || !strings.Contains(err.Error(), "unknown "+what) {
			t.Errorf("%s L2: got %v", what, err)
		}
	}
	if got := rtnl.MacvlanMode(16).String(); got != "mode 16" {
		t.Errorf("a mode without a name: got %q", got)
	}
}
