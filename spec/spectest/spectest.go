// Package spectest makes requests for unit tests of plugins, and compares errors.
package spectest

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// Request returns a request for eth0 of container c1 in network net1. The keys of the object conf
// are added to version, name and type.
func Request(t testing.TB, verb spec.Verb, conf, args string) *spec.Request {
	t.Helper()
	r, err := TryRequest(verb, conf, args)
	if err != nil {
		t.Fatal(err)
	}
	s := session.New()
	r.Call.Session = s.For(0, "", nil)
	t.Cleanup(func() {
		r.Call.Session.Close()
		s.Close()
	})
	return r
}

// TryRequest is [Request] for a configuration that may be invalid.
func TryRequest(verb spec.Verb, conf, args string) (*spec.Request, error) {
	call := spec.Call{Verb: verb, ContainerID: "c1", IfName: "eth0", NetNS: "/nowhere/netns", Args: args}
	whole := `{"cniVersion":"1.1.0","name":"net1","type":"meta"` + strings.Replace(conf, "{", ",", 1)
	if conf == "{}" {
		whole = `{"cniVersion":"1.1.0","name":"net1","type":"meta"}`
	}
	return spec.NewRequest(call, []byte(whole))
}

// WantError requires an error with the text and the code; an empty text requires none.
func WantError(t testing.TB, err error, text string, code int) {
	t.Helper()
	switch {
	case text == "" && err == nil:
	case text == "" || err == nil || !strings.Contains(err.Error(), text):
		t.Errorf("error: got %v, want %q", err, text)
	case spec.AsError(err).Code != code:
		t.Errorf("code of %v: got %d, want %d", err, spec.AsError(err).Code, code)
	}
}
