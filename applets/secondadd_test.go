package applets_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// A runtime that has lost its state may run ADD of the same attachment again in another live
// namespace. ADD fails, and neither it nor its undo changes anything of the first attachment.
func TestKernelSecondAddInOtherNamespace(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, conf string, _ bool) {
		if !applettest.Makes(plugin) || !strings.Contains(conf, "host-local") && plugin != "host-device" && plugin != "flannel" {
			return // without a lease or a device, nothing is in use twice
		}
		s := newStage(t, plugin)
		first, conf := s.container("ctr", conf)
		second, _ := s.container("ctr", conf)
		out := s.Must(spec.Add, plugin, conf, first)
		before := s.Snapshot(first, second)
		code, answer := s.Call(spec.Add, plugin, conf, second)
		if code == 0 {
			t.Errorf("the second ADD succeeds: %s", answer)
		}
		if after := s.Snapshot(first, second); after != before {
			t.Errorf("the second ADD, answered by %s\nchanges:\n%s", answer, kerneltest.Diff(before, after))
		}
		s.Must(spec.Check, plugin, applettest.Prev(conf, out), first)
	})
}
