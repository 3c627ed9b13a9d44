package tuning_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// Sandboxes are compared as namespaces, not as paths.
func TestKernelTuningComparesNamespaces(t *testing.T) {
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

// If the sandbox cannot be opened, for example since the runtime has unmounted it, it counts as the
// container's: the result has the new MAC address and MTU, as in the reference. The sandbox of
// another namespace does not.
func TestKernelTuningUnmountedSandbox(t *testing.T) {
	w := applettest.NewVeth(t)
	other := kerneltest.NSPath(t, kerneltest.NS(t))
	for path, want := range map[string]string{"/nowhere/netns": "02:00:00:00:00:AA 1400", t.TempDir(): "02:00:00:00:00:AA 1400", other: " 0"} {
		prev := strings.ReplaceAll(w.PrevResult("[]"), w.Cont.Path, path)
		res := w.Result(w.Do(spec.Add, "tuning", w.Cont.Call(), `"mac":"02:00:00:00:00:AA","mtu":1400`, prev))
		if got := fmt.Sprint(res.Interfaces[1].MAC, " ", res.Interfaces[1].MTU); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
