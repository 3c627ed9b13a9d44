package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
)

// TestKernelSetns makes each setns(2) of ADD fail, one of them or all from there on, whether it
// enters a namespace or restores the thread: ADD answers with one JSON document, and a failed ADD
// leaves everything as it was.
func TestKernelSetns(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	for name, v := range victims {
		for _, more := range []string{"", "+"} {
			t.Run(name+more, func(t *testing.T) {
				t.Parallel()
				w, c := v.host(t)
				before := w.Snapshot(c)
				failed := 0
				for n := 1; n < 50; n++ {
					failing := w.Path("failed")
					a := v.add(w, c, 8080, fmt.Sprintf("%s=%d%s %s", failSetns, n, more, failing))
					injected := os.Remove(failing) == nil
					what := fmt.Sprintf("ADD whose setns %d%s fails", n, more)
					if code := a.code(t); code != 0 {
						failed++
						if strings.Contains(a.stdout, "not complete") {
							// the undo's setns fails as well: ADD reports that, and keeps the
							// record for the next DEL
							what += ", then DEL"
							w.must(what, v.del(w, c, 8080))
						}
						w.Same(what, before, w.Snapshot(c))
						continue
					}
					w.must(what+", then DEL", v.del(w, c, 8080))
					w.Same(what+", then DEL", before, w.Snapshot(c))
					if !injected {
						break // there are not that many
					}
				}
				if failed == 0 {
					t.Error("no ADD failed: there is nothing to test")
				}
			})
		}
	}
}

// failSetns is a variable with the number of the setns(2) that fails, "+" if all after it do as well, and a file
// that is made then.
const failSetns = "CNIBOX_TEST_SETNS"

// armSetns makes this process act on the variable.
func armSetns(value string) {
	which, file, _ := strings.Cut(value, " ")
	number, more := strings.CutSuffix(which, "+")
	at, _ := strconv.ParseInt(number, 10, 64)
	var calls atomic.Int64
	fault.Enter = func() error {
		if n := calls.Add(1); n < at || n > at && !more {
			return nil
		}
		return cmp.Or(os.WriteFile(file, nil, 0o600), error(unix.ENOMEM))
	}
}
