package applets_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// lockInOtherProcess lets another process hold a lock on a file or a directory until the test ends.
func lockInOtherProcess(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("/bin/cat") // inherits the open file, and so the lock
	holder.ExtraFiles = []*os.File{file}
	stdin, err := holder.StdinPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); holder.Wait() })
}

// shortTimeout reduces the timeout of all locks.
func shortTimeout(t *testing.T) {
	flock.Timeout = 50 * time.Millisecond
	t.Cleanup(func() { flock.Timeout = 30 * time.Second })
}

// A verb returns code 11 if another process holds a lock for longer than the timeout, which is in
// the help of host-local.
func TestKernelLockTimeout(t *testing.T) {
	help, _ := applets.Lookup("host-local")
	if !strings.Contains(help.Help, "waits "+strings.TrimSuffix(flock.Timeout.String(), "s")+" s for the") {
		t.Errorf("the help of host-local does not name the %s:\n%s", flock.Timeout, help.Help)
	}
	shortTimeout(t)
	h := applettest.NewHost(t)
	leases := t.TempDir()
	ipam := `"ipam":{"type":"host-local","dataDir":"` + leases + `","subnet":"10.1.0.0/24"}`
	conf := `{"cniVersion":"1.1.0","name":"demo","type":"host-local",` + ipam + `}`
	p := h.Container("ctr")
	h.Must(spec.Add, "host-local", conf, p)
	t.Run("host-local", func(t *testing.T) {
		lockInOtherProcess(t, filepath.Join(leases, "demo", "lock"))
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			before := h.Snapshot(p)
			wantLockTimeout(t, h, verb, "host-local", conf, p)
			if after := h.Snapshot(p); after != before {
				t.Errorf("%s: it is not as before:\n%s", verb, kerneltest.Diff(before, after))
			}
		}
	})
	t.Run("bridge", func(t *testing.T) {
		bridge := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",` + ipam + `}`
		h.Must(spec.Add, "bridge", bridge, h.Container("other"))
		lockInOtherProcess(t, filepath.Join(leases, "demo", "lock"))
		before := h.Snapshot(p)
		wantLockTimeout(t, h, spec.Add, "bridge", bridge, p)
		if after := h.Snapshot(p); after != before {
			t.Errorf("it is not as before:\n%s", kerneltest.Diff(before, after))
		}
	})
	h.Must(spec.Del, "host-local", conf, p)
}

// wantLockTimeout calls a verb, which must return code 11.
func wantLockTimeout(t *testing.T, h *applettest.Host, verb spec.Verb, plugin, conf string, p applettest.Container) {
	t.Helper()
	code, out := h.Call(verb, plugin, conf, p)
	if code != spec.CodeTryAgain || !strings.Contains(out, "held by another process") {
		t.Errorf("%s: code %d, %s", verb, code, out)
	}
}
