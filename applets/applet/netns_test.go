package applet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// The runtime's own namespace is an error. A path without a namespace is one for plugins that need
// the namespace.
func TestKernelNetNSChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ns := kerneltest.NSPath(t, kerneltest.NS(t))
	const own = "/proc/thread-self/ns/net"
	for name, tt := range map[string]struct {
		call       spec.Call
		any, needs int // code for a plugin with AnyNetNS, and without
	}{
		"a namespace":       {spec.Call{Verb: spec.Add, NetNS: ns}, 0, 0},
		"DEL without path":  {spec.Call{Verb: spec.Del}, 0, 0},
		"DEL of missing":    {spec.Call{Verb: spec.Del, NetNS: "/nowhere"}, 0, 0},
		"DEL of own":        {spec.Call{Verb: spec.Del, NetNS: own}, spec.CodeNetNS, spec.CodeNetNS},
		"CHECK of own":      {spec.Call{Verb: spec.Check, NetNS: own}, spec.CodeNetNS, spec.CodeNetNS},
		"none":              {spec.Call{Verb: spec.Add}, 0, spec.CodeNetNS},
		"gone":              {spec.Call{Verb: spec.Add, NetNS: "/nowhere"}, 0, spec.CodeNetNS},
		"GET of missing":    {spec.Call{Verb: spec.Get, NetNS: "/nowhere"}, 0, spec.CodeUnknown},
		"a file":            {spec.Call{Verb: spec.Get, NetNS: file}, 0, spec.CodeNetNS},
		"own with override": {spec.Call{Verb: spec.Add, NetNS: own, NetNSOverride: true}, 0, 0},
		"STATUS":            {spec.Call{Verb: spec.Status, NetNS: own}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for any, want := range map[bool]int{true: tt.any, false: tt.needs} {
				verb := session.New()
				defer verb.Close()
				tt.call.Session = verb.For(0, "", nil)
				defer tt.call.Session.Close()
				r := &spec.Request{Call: tt.call}
				r.Network = "n"
				got, err := 0, checkNetNS(r, !any)
				if err != nil {
					got = spec.AsError(err).Code
				}
				if got != want {
					t.Errorf("in any namespace %t: code %d, want %d: %v", any, got, want, err)
				}
			}
		})
	}
}
