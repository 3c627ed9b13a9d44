//go:build !no_tuning

package applets_test

import (
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// Two paths to a namespace are one sandbox.
func TestKernelTuningSandboxPath(t *testing.T) {
	w := newWire(t)
	prev := strings.ReplaceAll(w.prev("[]"), w.path, kerneltest.NSPath(t, w.cont))
	res := w.must(w.run("tuning", spec.Add, w.call(), `"mac":"02:00:00:00:00:AA","mtu":1400`, prev))
	if in := res.Interfaces[1]; in.MAC != "02:00:00:00:00:AA" || in.MTU != 1400 {
		t.Errorf("the result has %+v", in)
	}
	if in := res.Interfaces[0]; in.MAC != "" {
		t.Errorf("the host's end in the result: %+v", in)
	}
}
