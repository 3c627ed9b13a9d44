package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Pages that were written, or may be, are never dropped.
func TestCleanMappings(t *testing.T) {
	const smaps = `00400000-0073f000 r-xp 00000000 fe:00 10437930                           /opt/cni/bin/cni box
Size:               3324 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me
0073f000-00a7a000 r--p 0033f000 fe:00 10437930                           /opt/cni/bin/cnibox
Anonymous:             4 kB
00a7a000-00aa1000 rw-p 0067a000 fe:00 10437930                           /opt/cni/bin/cnibox
Anonymous:             0 kB
00aa1000-02ad8000 r--p 00000000 00:00 0
Anonymous:             0 kB
00b00000-00b01000 r--p 00001000 fe:00 1                                  /lib/more (deleted)
Anonymous:             0 kB
7fe54b531000-7fe54b533000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`
	var got []string
	eachCleanMapping(strings.NewReader(smaps), func(start, end uintptr) { got = append(got, fmt.Sprintf("%x-%x", start, end)) })
	if want := []string{"400000-73f000", "b00000-b01000"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
