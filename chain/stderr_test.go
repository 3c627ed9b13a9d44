package chain_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// If a plugin writes to stderr and fails, the text is in the error. It is also forwarded for a
// delegating plugin, but not for a runtime, which prints the error.
func TestStderrOfFailure(t *testing.T) {
	tests := map[string]string{
		"error object":    `fail {\"code\":7,\"msg\":\"m\"}|log`,
		"no error object": "fail |log",
		"deadline":        "log and sleep",
	}
	for name, do := range tests {
		for _, inError := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newFixture(t, "rec")
				var stderr strings.Builder
				w.local.Stderr, w.local.StderrInError = &stderr, inError
				r, err := spec.NewRequest(
					spec.Call{Verb: spec.Add, ContainerID: "c", IfName: "eth0", NetNS: ownNS},
					[]byte(`{"name":"n","type":"rec","cniVersion":"1.0.0","do":"`+do+`"}`))
				if err != nil {
					t.Fatal(err)
				}
				ctx := deadline{t.Context(), make(chan struct{})}
				invoked := make(chan error, 1)
				go func() { _, err := w.local.Invoke(ctx, "rec", r); invoked <- err }()
				if name == "deadline" {
					kerneltest.Until(w, "the plugin's log", func() bool {
						_, err := os.Stat(w.recordFile() + ".logged")
						return err == nil
					})
					close(ctx.passed)
				}
				err = <-invoked
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

// A deadline is a context whose deadline passes when the channel is closed.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
