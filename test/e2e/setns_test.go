package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
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
				w.strace() // skips without strace
				before := w.Snapshot(c)
				failed := 0
				for n := 1; n < 50; n++ {
					w.strace("-o", w.Path("trace"), "-e", "trace=setns", "-e", fmt.Sprintf("inject=setns:error=ENOMEM:when=%d%s", n, more))
					a := v.add(w, c, 8080)
					w.tracer = nil
					injected := w.traced("(INJECTED)")
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
						break // no thread makes that many
					}
				}
				if failed == 0 {
					t.Error("no ADD failed: there is nothing to test")
				}
			})
		}
	}
}

// traced reports whether the trace contains what, and deletes the trace.
func (w *world) traced(what string) bool {
	w.Helper()
	b, err := os.ReadFile(w.Path("trace"))
	if err == nil {
		err = os.Remove(w.Path("trace"))
	}
	if err != nil {
		w.Fatal(err)
	}
	return strings.Contains(string(b), what)
}
