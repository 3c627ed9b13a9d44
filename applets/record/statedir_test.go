package record_test

import (
	"testing"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/spec"
)

// dataDir takes precedence over the state directory, and that over the default. An invalid dataDir
// is ignored, with an error.
func TestResolveDirPrecedence(t *testing.T) {
	for _, tt := range []struct {
		root, configured string
		want             record.Dir
		err              bool
	}{
		{"", "", "/run/cnibox/sbr", false},
		{"/s", "", "/s/sbr", false},
		{"/s", "/d", "/d", false},
		{"", "/d", "/d", false},
		{"", "d", "/run/cnibox/sbr", true},
		{"/s", "d", "/s/sbr", true},
		{"/s", "/d\x00", "/s/sbr", true},
	} {
		got, err := record.ResolveDir(spec.Call{StateDir: tt.root}, tt.configured, "/run/cnibox/sbr")
		if got != tt.want || (err != nil) != tt.err || err != nil && spec.AsError(err).Code != spec.CodeConfig {
			t.Errorf("%q, %q: got %s, %v", tt.root, tt.configured, got, err)
		}
	}
}
