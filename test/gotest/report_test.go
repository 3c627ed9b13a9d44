package main

import (
	"strings"
	"testing"
)

// A failure is printed when it happens, a reason to skip once with its number, and what a package says
// that ends in the midst of a test.
func TestReport(t *testing.T) {
	var out, log strings.Builder
	r := newReport(&out, &log)
	r.read(strings.NewReader(`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:3: SKIPPED: no card\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: it is 3\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.01s)\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.01}
`))
	want := "--- FAIL: p TestA (0.01s)\n|     a_test.go:1: it is 3\n"
	if out.String() != want {
		t.Errorf("at the failure: got %q, want %q", &out, want)
	}
	r.read(strings.NewReader(`{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    b_test.go:9: SKIPPED: no card\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"pass","Package":"p","Test":"TestD"}
{"Action":"output","Package":"p","Test":"TestE","Output":"so far\n"}
{"Action":"output","Package":"p","Output":"panic: no\n"}
{"Action":"fail","Package":"p","Elapsed":0.5}
{"Action":"pass","Package":"q","Elapsed":0.25}
no JSON
`))
	r.end("LOG")
	want += `--- FAIL: p TestE did not end
| so far
| panic: no
FAIL	p	0.500s
ok  	q	0.250s
no JSON
SKIPPED: no card (2 times)
all that the tests said: LOG
1 passed, 1 failed, 2 skipped
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	if r.status() != 1 || !strings.Contains(log.String(), "it is 3") {
		t.Errorf("status %d, log %q", r.status(), &log)
	}
	if r := newReport(&out, &log); r.status() != 0 {
		t.Error("a run without a failure has failed")
	}
}
