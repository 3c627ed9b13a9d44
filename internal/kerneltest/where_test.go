package kerneltest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A skipper records the reason of a skip, and the test continues.
type skipper struct {
	testing.TB
	reason string
}

func (s *skipper) Skipf(format string, args ...any) { s.reason = fmt.Sprintf(format, args...) }

// Each test runs in the lanes that it does not exclude: on this machine always, and in a guest where it was
// asked for.
func TestLanes(t *testing.T) {
	lanes := []string{"", LaneRace, LaneCross, LaneGuest, LaneGuests, LanePart, LaneLacks}
	for name, tt := range map[string]struct {
		says func(testing.TB)
		runs []bool // in these lanes
	}{
		"Measures":  {Measures, []bool{true, false, false, true, true, true, true}},
		"Slow":      {Slow, []bool{true, true, true, false, false, true, true}},
		"OneKernel": {OneKernel, []bool{true, true, true, true, false, true, false}},
		"Native":    {Native, []bool{true, true, false, true, true, true, true}},
	} {
		for i, lane := range lanes {
			t.Setenv("CNIBOX_LANE", lane)
			s := &skipper{TB: t}
			tt.says(s)
			want := ""
			if !tt.runs[i] {
				want = "SKIPPED: " + OtherLane + lane
			}
			if s.reason != want {
				t.Errorf("%s in the lane %q: skipped for %q, want %q", name, lane, s.reason, want)
			}
		}
	}
}

// A test that is skipped for a feature of the kernel is in the file that selects the tests of a guest; one
// that is skipped for another reason is not.
func TestLacksFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lacks")
	t.Setenv("CNIBOX_LACKS", file)
	for _, err := range []error{nil, unix.EACCES, unix.EOPNOTSUPP} {
		Need(&skipper{TB: t}, "CONFIG_X", func() error { return err })
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "github.com/cnibox/cnibox/internal/kerneltest TestLacksFile\n" {
		t.Errorf("the file is %q, %v", got, err)
	}
}
