package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// If cni-exec add cannot write its result to stdout, it deletes the attachment, and the next add
// succeeds.
func TestKernelAddUnwritableStdout(t *testing.T) {
	t.Parallel()
	open := func(path string, flag int) *os.File {
		t.Helper()
		f, err := os.OpenFile(path, flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	defer pipe.Close()
	r := newRunner(t)
	c := r.Container("c1")
	call := func(stdout *os.File, verb string, flags ...string) (exit int, stderr string) {
		t.Helper()
		args := append([]string{verb, "cnibox", c.Path, "--conf-dir", r.Path("none"), "--cache-dir", "cni"}, flags...)
		cmd := exec.Command(r.Path("bin/cni-exec"), args...)
		cmd.Stdout = stdout
		exit, _, stderr, err := r.Process(cmd, "")
		r.NoError(err)
		return exit, stderr
	}
	must := func(verb string) {
		t.Helper()
		if exit, stderr := call(open(os.DevNull, os.O_WRONLY), verb); exit != 0 {
			t.Fatalf("%s: exit %d: %s", verb, exit, stderr)
		}
	}
	must("add") // the bridge stays
	must("del")
	before := kerneltest.Snapshot(t, r.NS) + kerneltest.Snapshot(t, c.NS)
	for name, stdout := range map[string]*os.File{
		"full":      open("/dev/full", os.O_WRONLY),
		"read-only": open(os.DevNull, os.O_RDONLY),
		"no reader": pipe,
	} {
		t.Run(name, func(t *testing.T) {
			exit, stderr := call(stdout, "add", "-o", "json")
			if exit != 1 || !strings.Contains(stderr, "write the result") {
				t.Errorf("exit %d, want 1: %s", exit, stderr)
			}
			r.clean()
			if after := kerneltest.Snapshot(t, r.NS) + kerneltest.Snapshot(t, c.NS); after != before {
				t.Error(kerneltest.Diff(before, after))
			}
			must("add")
			must("del")
		})
	}
}
