package applets_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets"
	"cnibox/internal/flock"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// lockedElsewhere has another process hold a lock on a file, or a folder, until the test ends.
func lockedElsewhere(t *testing.T, path string) {
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
	holder := exec.Command("/bin/cat") // the lock is that of the open file, which it inherits
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

// impatient makes all waits for locks short.
func impatient(t *testing.T) {
	flock.Timeout = 50 * time.Millisecond
	t.Cleanup(func() { flock.Timeout = 30 * time.Second })
}

// A lock that another process holds for ever ends a verb with code 11, after the time that the
// help of host-local names.
func TestKernelLockIsNotWaitedForForEver(t *testing.T) {
	help, _ := applets.Lookup("host-local")
	if !strings.Contains(help.Help, "waits "+strings.TrimSuffix(flock.Timeout.String(), "s")+" s for the") {
		t.Errorf("the help of host-local does not name the %s:\n%s", flock.Timeout, help.Help)
	}
	impatient(t)
	n := newNode(t)
	leases := t.TempDir()
	ipam := `"ipam":{"type":"host-local","dataDir":"` + leases + `","subnet":"10.1.0.0/24"}`
	conf := `{"cniVersion":"1.1.0","name":"demo","type":"host-local",` + ipam + `}`
	p := n.pod("ctr")
	n.must(spec.Add, "host-local", conf, p)
	t.Run("host-local", func(t *testing.T) {
		lockedElsewhere(t, filepath.Join(leases, "demo", "lock"))
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			before := n.state(p)
			n.inTime(t, verb, "host-local", conf, p)
			if after := n.state(p); after != before {
				t.Errorf("%s: it is not as before:\n%s", verb, kerneltest.Diff(before, after))
			}
		}
	})
	t.Run("bridge", func(t *testing.T) {
		bridge := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",` + ipam + `}`
		n.must(spec.Add, "bridge", bridge, n.pod("other"))
		lockedElsewhere(t, filepath.Join(leases, "demo", "lock"))
		before := n.state(p)
		n.inTime(t, spec.Add, "bridge", bridge, p)
		if after := n.state(p); after != before {
			t.Errorf("it is not as before:\n%s", kerneltest.Diff(before, after))
		}
	})
	n.must(spec.Del, "host-local", conf, p)
}

// inTime calls a verb that has to end with code 11.
func (n *node) inTime(t *testing.T, verb spec.Verb, applet, conf string, p pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kerneltest.Patience(10*time.Second))
	defer cancel()
	code, out := n.call(ctx, verb, applet, conf, p)
	if ctx.Err() != nil {
		t.Fatalf("%s waits on", verb)
	}
	if code != spec.CodeTryAgain || !strings.Contains(out, "held by another process") {
		t.Errorf("%s: code %d, %s", verb, code, out)
	}
}
