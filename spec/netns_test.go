package spec_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// The outcome of OpenNS and OpenNSIfExists depends on the verb and the path.
func TestKernelOpenNS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ns := kerneltest.NS(t)
	const own = "/proc/thread-self/ns/net"
	for name, tt := range map[string]struct {
		call          spec.Call
		open, ifThere int // error codes of OpenNS, OpenNSIfExists; 0: none
	}{
		"a namespace":       {spec.Call{Verb: spec.Add, NetNS: kerneltest.NSPath(t, ns)}, 0, 0},
		"none":              {spec.Call{Verb: spec.Del}, spec.CodeNetNS, 0},
		"gone":              {spec.Call{Verb: spec.Add, NetNS: "/nowhere"}, spec.CodeNetNS, 0},
		"GET of missing":    {spec.Call{Verb: spec.Get, NetNS: "/nowhere"}, spec.CodeUnknown, 0},
		"a file":            {spec.Call{Verb: spec.Get, NetNS: file}, spec.CodeNetNS, 0},
		"own":               {spec.Call{Verb: spec.Del, NetNS: own}, spec.CodeNetNS, spec.CodeNetNS},
		"own with override": {spec.Call{Verb: spec.Add, NetNS: own, NetNSOverride: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			verb := session.New()
			defer verb.Close()
			tt.call.Session = verb.For(0, "", nil)
			defer tt.call.Session.Close()
			opened, err := tt.call.OpenNS()
			wantCode(t, "OpenNS", err, tt.open)
			if err == nil && tt.call.NetNS != own {
				if same, err := opened.Same(ns); err != nil || !same {
					t.Errorf("another namespace: %v", err)
				}
			}
			if again, err := tt.call.OpenNS(); err == nil && again != opened {
				t.Error("it is opened twice")
			}
			opened, err = tt.call.OpenNSIfExists()
			wantCode(t, "OpenNSIfExists", err, tt.ifThere)
			if there := opened != nil; there != (tt.open == 0) {
				t.Errorf("OpenNSIfExists: there %t", there)
			}
		})
	}
}

func wantCode(t *testing.T, what string, err error, want int) {
	t.Helper()
	got := 0
	if err != nil {
		got = spec.AsError(err).Code
	}
	if got != want {
		t.Errorf("%s: code %d, want %d: %v", what, got, want, err)
	}
}
