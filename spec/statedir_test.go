package spec_test

import (
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// CNIBOX_STATE is read for each verb, and must be an absolute path.
func TestStateDir(t *testing.T) {
	tests := map[string]string{ // value to message; "": no error
		"": "", "/var/state": "", "/": "",
		"state":    `CNIBOX_STATE "state" is not an absolute path`,
		"../state": `CNIBOX_STATE "../state" is not an absolute path`,
		" /state":  `CNIBOX_STATE " /state" is not an absolute path`,
	}
	for dir, want := range tests {
		for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": "c", "CNI_NETNS": "/ns", "CNI_IFNAME": "eth0", "CNIBOX_STATE": dir}
			c, err := spec.ReadCall(func(k string) string { return env[k] })
			switch e := spec.AsError(err); {
			case want == "" && (err != nil || c.StateDir != dir):
				t.Errorf("%s, %q: got %q, %v", verb, dir, c.StateDir, err)
			case want != "" && (err == nil || e.Code != spec.CodeEnv || e.Msg != want):
				t.Errorf("%s, %q: got %v, want code 4 and %q", verb, dir, err, want)
			}
		}
	}
}
