package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// reportOf passes a guest's output to a report, and returns the report with what it printed.
func reportOf(t *testing.T, said string) (*report, string) {
	t.Helper()
	var out strings.Builder
	r := newReport("6.1", &printer{out: &out})
	if err := listen(t.Context(), strings.NewReader(said), r.line); err != nil {
		t.Fatal(err)
	}
	return r, out.String()
}

func TestReport(t *testing.T) {
	const good = "##vm boot 6.1.0\n##vm run cnibox/a\n=== RUN   TestKernelA\n--- PASS: TestKernelA (0.10s)\nPASS\n##vm exit cnibox/a 0\n"
	const bad = "##vm run cnibox/b\n=== RUN   TestKernelB\n    b_test.go:1: fine\n--- PASS: TestKernelB (0.10s)\n" +
		"=== RUN   TestKernelC\n=== RUN   TestKernelC/x\n    b_test.go:2: broken\r\n--- FAIL: TestKernelC (0.10s)\n    --- FAIL: TestKernelC/x (0.10s)\n" +
		"FAIL\n##vm exit cnibox/b 1\n"
	const skip = "##vm run cnibox/c\n=== RUN   TestKernelD\n=== PAUSE TestKernelD\n=== CONT  TestKernelD\n" +
		"    c_test.go:3: SKIPPED: this kernel lacks CONFIG_X: no\n--- SKIP: TestKernelD (0.00s)\nPASS\n##vm exit cnibox/c 0\n"
	const panics = "##vm run cnibox/d\n=== RUN   TestKernelE\npanic: odd\n\ngoroutine 1 [running]:\n\tmain.go:1\n##vm exit cnibox/d 2\n"
	tests := map[string]struct {
		said    string
		want    []string
		not     string
		verdict string // part of it; "": passed
		done    bool
	}{
		"good":    {good + "##vm done\n", []string{"=== Linux 6.1: 6.1.0", "ok  \tcnibox/a\t", "slow\tcnibox/a TestKernelA\t0.1s\t(Linux 6.1)"}, "FAIL", "", true},
		"bad":     {good + bad + "##vm done\n", []string{"b_test.go:2: broken\n", "    --- FAIL: TestKernelC/x", "FAIL\tcnibox/b\t"}, "fine", "cnibox/b", true},
		"skipped": {skip + "##vm done\n", []string{"SKIPPED: Linux 6.1: this kernel lacks CONFIG_X: no (TestKernelD)"}, "FAIL", "", true},
		"another lane": {strings.ReplaceAll(skip, "this kernel lacks CONFIG_X: no", kerneltest.OtherLane+"guest") + "##vm done\n",
			[]string{"SKIPPED: Linux 6.1: left out of the lane guest (1 tests)"}, "(TestKernelD)", "", true},
		"panic":         {panics + "##vm done\n", []string{"panic: odd", "\tmain.go:1", "FAIL\tcnibox/d\t"}, "", "cnibox/d", true},
		"killed":        {"##vm run cnibox/e\n##vm exit cnibox/e 137\n##vm done\n", []string{"FAIL\tcnibox/e\t"}, "", "cnibox/e", true},
		"nothing to do": {"##vm run cnibox/f\ntesting: warning: no tests to run\nPASS\n##vm exit cnibox/f 0\n##vm done", []string{"[no tests to run]"}, "FAIL", "", true},
		"died":          {good + "##vm run cnibox/b\n=== RUN   TestKernelB\n", nil, "FAIL", "", false},
		"another's end": {"##vm run cnibox/a\n##vm exit cnibox/b 0\n", nil, "ok", "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, got := reportOf(t, tt.said)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("got %q, want %q in it", got, want)
				}
			}
			if tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("got %q, want no %q in it", got, tt.not)
			}
			if r.done != tt.done {
				t.Errorf("done is %t, want %t", r.done, tt.done)
			}
			err := r.verdict()
			if (err == nil) != (tt.verdict == "") || err != nil && !strings.Contains(err.Error(), tt.verdict) {
				t.Errorf("got the verdict %v, want %q", err, tt.verdict)
			}
		})
	}
}

// The report of a guest that crashes has the test, and its kernel's last messages.
func TestReportBroken(t *testing.T) {
	var out strings.Builder
	r := newReport("5.10", &printer{out: &out})
	r.line("##vm run cnibox/b")
	r.line("=== RUN   TestKernelB")
	r.line("    b_test.go:1: last words")
	r.printBroken(errors.New("the guest died"), "Kernel panic")
	for _, want := range []string{"last words", "FAIL\tcnibox/b in TestKernelB\t(Linux 5.10)", "the guest died", "Kernel panic"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want %q in it", out.String(), want)
		}
	}
}

func TestMissedEverywhere(t *testing.T) {
	a, b := newReport("a", nil), newReport("b", nil)
	a.skips = map[string][]string{"no x": {"TestKernelX", "TestKernelY"}}
	b.skips = map[string][]string{"another reason": {"TestKernelX"}}
	b.line("--- PASS: TestKernelY (0.10s)")
	b.line("    z_test.go:1: SKIPPED: " + kerneltest.OtherLane + "guest")
	if got, want := missedEverywhere([]*report{a, b}), "SKIPPED: TestKernelX passed on NO kernel\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The tests of a file for -lacks are selected exactly, whatever characters their names have.
func TestLacking(t *testing.T) {
	pkgs, run := lacking("github.com/cnibox/cnibox/test/script TestKernelScripts/exec/vlan\ngithub.com/cnibox/cnibox/rtnl TestKernelVLAN\ngithub.com/cnibox/cnibox/rtnl TestKernelX/a.b|c\ngithub.com/cnibox/cnibox/rtnl TestKernelVLAN\n")
	if want := "./rtnl,./test/script"; pkgs != want {
		t.Errorf("packages %q, want %q", pkgs, want)
	}
	if want := `^TestKernelScripts$/^exec$/^vlan$|^TestKernelVLAN$|^TestKernelX$/^a\.b\|c$`; run != want {
		t.Errorf("tests %q, want %q", run, want)
	}
	if pkgs, run := lacking(""); pkgs != "" || run != "" {
		t.Errorf("%q and %q of nothing", pkgs, run)
	}
}

// listen ends for a guest that prints nothing more.
func TestListenEnds(t *testing.T) {
	in, guest := io.Pipe()
	defer guest.Close()
	cause := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer cancel()
	go io.WriteString(guest, "##vm run cnibox/a\nhalf a line")
	if err := listen(ctx, in, newReport("6.1", &printer{out: io.Discard}).line); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestModuleClosure(t *testing.T) {
	const deps = "kernel/net/a.ko: kernel/lib/b.ko\nkernel/lib/b.ko: kernel/lib/c-d.ko\nkernel/lib/c-d.ko:\nkernel/fs/e.ko:\n"
	lines, names := closure(deps, func(path string) bool { return strings.HasPrefix(path, "kernel/net/") })
	if want := strings.TrimSuffix(deps, "kernel/fs/e.ko:\n"); lines != want {
		t.Errorf("got %q, want %q", lines, want)
	}
	if len(names) != 3 || !names["c_d"] {
		t.Errorf("got the names %v", names)
	}
	if got, want := ofModules("alias x-* a\nalias y e\n# alias\n", names), "alias x-* a\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDependency(t *testing.T) {
	const meta = "Package: linux-image-cloud-amd64\nProvides: linux-latest\nDepends: other, linux-image-6.1.0-1-cloud-amd64 (= 6.1.1-1)\n"
	if got, want := dependency(meta), "linux-image-6.1.0-1-cloud-amd64"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// busybox, another implementation of the format, unpacks the archive.
func TestImage(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	dir := t.TempDir()
	source, file := filepath.Join(dir, "source"), filepath.Join(dir, "image")
	if err := os.WriteFile(source, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	im := newImage()
	delete(im, "/dev/console") // creating it needs root
	im.text("/sbin/five", "12345", 0o755)
	im.copy("/a/b/copy", source, 0o644)
	im.link("/a/link", "b/copy")
	if err := im.write(file); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(busybox, "cpio", "-id", "-F", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	for name, want := range map[string]string{"usr/sbin/five": "12345", "sbin/five": "12345", "a/link": "copied"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "usr/sbin/five")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("got %v, %v; want mode 755", st, err)
	}
}

// A failure is retried a limited number of times, and not after the context ended.
func TestRetry(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx         context.Context
		fails, want int // attempts
	}{"well": {t.Context(), 0, 1}, "ill at first": {t.Context(), 2, 3}, "ill": {t.Context(), 9, 4}, "over": {over, 9, 1}} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			err := retry(tt.ctx, make([]time.Duration, 3), func() error {
				if tries++; tries <= tt.fails {
					return errors.New("no network")
				}
				return nil
			})
			if tries != tt.want || (err == nil) != (tt.fails < tt.want) {
				t.Errorf("got %d tries, %v, want %d", tries, err, tt.want)
			}
		})
	}
}
