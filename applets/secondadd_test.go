package applets_test

import (
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// In TestKernelSecondAdd a runtime that has lost its state runs ADD of the same container,
// interface and network again, in another live namespace. It is refused, and neither it nor its
// undo changes anything of the first.
func TestKernelSecondAdd(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, conf string, _ bool) {
		if !applettest.Makes(plugin) || !strings.Contains(conf, "host-local") && plugin != "host-device" && plugin != "flannel" {
			return // another namespace may have the same
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
