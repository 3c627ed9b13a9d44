package kerneltest

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// Values of CNIBOX_LANE: where tests run. Not set: everything, on the kernel of this machine.
const (
	LaneRace   = "race"        // with the race detector
	LaneCross  = "cross"       // on another architecture, emulated by qemu-user
	LaneGuest  = "guest"       // a guest of make test-vm
	LaneGuests = "guest-again" // a second guest, with another kernel
	LanePart   = "guest-part"  // a guest that runs tests which were asked for by name
	LaneLacks  = "guest-lacks" // a guest that runs what another kernel lacks, in .ci/run
)

// OtherLane begins the reason of a skip where other lanes run the test.
const OtherLane = "left out of the lane "

func lane() string { return os.Getenv("CNIBOX_LANE") }

// notIn skips the test in some lanes.
func notIn(t testing.TB, lanes ...string) {
	t.Helper()
	if slices.Contains(lanes, lane()) {
		t.Skipf("SKIPPED: %s%s", OtherLane, lane())
	}
}

// Measures says that the test judges memory or processor time, which mean nothing with the race
// detector or under qemu-user.
func Measures(t testing.TB) { t.Helper(); notIn(t, LaneRace, LaneCross) }

// Slow says that the test starts programs some hundred times, or tests processes, disks and bad input,
// and needs nothing that kernels lack: outside a guest it takes a tenth of the time.
func Slow(t testing.TB) { t.Helper(); notIn(t, LaneGuest, LaneGuests) }

// OneKernel says that the test starts as many programs and needs a guest, since some kernels lack what
// it needs, and that one guest of `make test-vm` is enough: an emulated processor starts 20 programs a second.
func OneKernel(t testing.TB) { t.Helper(); notIn(t, LaneGuests, LaneLacks) }

// Native says that the test needs what qemu-user does not have: network namespaces, and a second
// program of its kind.
func Native(t testing.TB) { t.Helper(); notIn(t, LaneCross) }

// Full reports whether this is the long lane, make test FULL=1, which takes every change and every verb where make test
// takes some.
func Full() bool { return os.Getenv("CNIBOX_FULL") != "" }

// Guest reports whether this is a guest of make test-vm, which runs the tests of features that other
// kernels lack.
func Guest() bool { return strings.HasPrefix(lane(), LaneGuest) }

// lacks skips the test since the kernel lacks a feature. The file CNIBOX_LACKS gets its package and
// name, for make test-vm LACKS=1.
func lacks(t testing.TB, feature string, err error) {
	t.Helper()
	if path := os.Getenv("CNIBOX_LACKS"); path != "" {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, _ := debug.ReadBuildInfo()
		if _, err := fmt.Fprintln(f, strings.TrimSuffix(info.Path, ".test"), t.Name()); err != nil {
			t.Fatal(err)
		}
	}
	t.Skipf("SKIPPED: this kernel lacks %s: %v", strings.TrimSpace(feature), err)
}
