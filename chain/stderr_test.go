package chain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/spec"
)

// If a plugin writes to stderr and fails, the text is in the error. It is also forwarded for a
// delegating plugin, but not for a runtime, which prints the error.
func TestStderrOfFailure(t *testing.T) {
	tests := map[string]struct {
		do      string
		timeout time.Duration
	}{
		"error object":    {do: `fail {\"code\":7,\"msg\":\"m\"}|log`},
		"no error object": {do: "fail |log"},
		"deadline":        {do: "log and sleep", timeout: time.Second},
	}
	for name, tt := range tests {
		for _, inError := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newFixture(t, "rec")
				var stderr strings.Builder
				w.local.Stderr, w.local.StderrInError = &stderr, inError
				if tt.timeout > 0 {
					w.local.Timeout = tt.timeout
				}
				r, err := spec.NewRequest(
					spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: ownNS},
					[]byte(`{"name":"n","type":"rec","cniVersion":"1.0.0","do":"`+tt.do+`"}`))
				if err != nil {
					t.Fatal(err)
				}
				_, err = w.local.Invoke(t.Context(), "rec", r)
				if err == nil || !strings.Contains(err.Error(), "log") {
					t.Errorf("got error %v, want one with the plugin's stderr", err)
				}
				if want := map[bool]string{false: "rec: log\n", true: ""}[inError]; stderr.String() != want {
					t.Errorf("stderr: got %q, want %q", stderr.String(), want)
				}
			})
		}
	}
}
