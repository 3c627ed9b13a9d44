package tuning_test

import (
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// Two paths to a namespace are one sandbox.
func TestKernelTuningTwoPathsOfSandbox(t *testing.T) {
	w := applettest.NewVeth(t)
	prev := strings.ReplaceAll(w.PrevResult("[]"), w.Cont.Path, kerneltest.NSPath(t, w.Cont.NS))
	res := w.Result(w.Do(spec.Add, "tuning", w.Cont.Call(), `"mac":"02:00:00:00:00:AA","mtu":1400`, prev))
	if in := res.Interfaces[1]; in.MAC != "02:00:00:00:00:AA" || in.MTU != 1400 {
		t.Errorf("the result has %+v", in)
	}
	if in := res.Interfaces[0]; in.MAC != "" {
		t.Errorf("the host's end in the result: %+v", in)
	}
}
