package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
)

// attachMany attaches count new containers, numbered from from, with a host port each. If dead,
// their network namespaces are deleted.
func (r *reloading) attachMany(from, count int, dead bool) {
	r.Helper()
	var gone []applettest.Container
	for i := from; i < from+count; i++ {
		c := r.Container(fmt.Sprintf("c%d", i))
		if dead {
			gone = append(gone, c)
		}
		r.add(c, "-p", fmt.Sprintf("%d:80", 20000+i))
	}
	if !dead {
		return
	}
	r.End(gone...)
	for _, c := range gone {
		if err := os.Remove(c.Path); err != nil {
			r.Fatal(err)
		}
	}
}

// veths counts the host-side veths.
func (r *reloading) veths() (n int) {
	r.Helper()
	links, err := kerneltest.Dial(r.T, r.NS).Links()
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range links {
		if l.Kind == "veth" {
			n++
		}
	}
	return n
}

// count counts what a gc of all attachments does, in one goroutine: each one has sockets of its own.
func (r *reloading) count() map[fault.Work]int {
	r.Helper()
	return r.measured(func() { r.must("gc", r.exec([]string{"GOMAXPROCS=1"}, "gc", "--all", "demo")) }).Work
}

// nothingLeft checks that no attachment has left anything.
func (r *reloading) nothingLeft() {
	r.Helper()
	for _, pattern := range []string{"cni/results/*", "leases/demo/[0-9f]*", "ports/*"} {
		if files, _ := filepath.Glob(r.Path(pattern)); len(files) > 0 {
			r.Errorf("left: %q", files)
		}
	}
	if rules := nfttest.Ruleset(r.T, r.NS); strings.Contains(rules, "demo/c") {
		r.Errorf("rules are left:\n%s", rules)
	}
	if n := r.veths(); n > 0 {
		r.Errorf("%d links are left", n)
	}
}

// TestKernelGCMany deletes few and many attachments, with and without their network namespaces: what gc does for
// each does not grow with their number. No attachment needs a socket of its own on the host or a transaction of
// its own, and the plugins are looked up once.
func TestKernelGCMany(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead=%t", dead), func(t *testing.T) {
			t.Parallel()
			r := newReloading(t, "")
			const few, many = 4, 16
			r.attachMany(1, 1, dead)
			r.count() // creates what the first gc creates
			r.attachMany(10, few, dead)
			small := r.count()
			r.nothingLeft()
			r.attachMany(20, many, dead)
			big := r.count()
			r.nothingLeft()
			t.Logf("%d: %v; %d: %v", few, small, many, big)
			each := map[fault.Work]int{
				fault.Answers: 6, fault.Requests: 14, fault.Changes: 7, fault.Namespaces: 2,
				fault.Files: 9, fault.Lists: 1, fault.Names: 7, fault.Locks: 1,
			}
			if !dead { // its namespace is entered, by one socket
				each[fault.Answers], each[fault.Requests], each[fault.Changes], each[fault.Namespaces] = 8, 15, 8, 1
				each[fault.Threads], each[fault.Sockets] = 1, 1
			}
			delete(big, fault.Bytes) // some KB for each
			delete(big, fault.Received)
			for work, n := range big {
				if small[work] == 0 {
					t.Errorf("with %d attachments, no %s were counted", few, work)
				}
				if got := n - small[work]; got > each[work]*(many-few) {
					t.Errorf("%d more %s for %d more attachments, want %d for each", got, work, many-few, each[work])
				}
			}
		})
	}
}

// If the lease of one attachment cannot be released, gc deletes the others and names it in the
// error, and the next gc deletes it.
func TestKernelGCManyOneFails(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, "")
	r.attachMany(1, 3, false)
	list := fmt.Sprintf(reloadList, "")
	r.write("net.d/demo.conflist", strings.Replace(list, "$DIR/leases", "$DIR/other", 1))
	r.attachMany(4, 1, false)
	r.write("net.d/demo.conflist", list)
	r.attachMany(5, 3, false)
	// The configuration cached by its ADD refers to leases that cannot be opened.
	odd := r.Path("other/demo")
	if err := os.Rename(odd, odd+".aside"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(odd, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := r.exec(nil, "gc", "--all", "demo")
	if a.exit == 0 || !strings.Contains(a.stderr, "c4 (demo): ") || !strings.Contains(a.stderr, odd) {
		t.Errorf("exit code %d: %s", a.exit, a.stderr)
	}
	for _, id := range []string{"c1", "c2", "c3", "c5", "c6", "c7"} {
		if !strings.Contains(a.stderr, "deleted "+id+" (demo)") {
			t.Errorf("%s is not deleted: %s", id, a.stderr)
		}
	}
	if strings.Contains(a.stderr, "deleted c4 ") {
		t.Errorf("it is said to be deleted: %s", a.stderr)
	}
	if files, _ := filepath.Glob(r.Path("cni/results/*")); len(files) != 1 || filepath.Base(files[0]) != "demo-c4-eth0" {
		t.Errorf("the cache has %q", files)
	}
	if err := os.Remove(odd); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(odd+".aside", odd); err != nil {
		t.Fatal(err)
	}
	r.must("gc", r.exec(nil, "gc", "--all", "demo"))
	r.nothingLeft()
	if left, _ := filepath.Glob(r.Path("other/demo/[0-9f]*")); len(left) > 0 {
		t.Errorf("leases are left: %q", left)
	}
}

// SIGTERM ends a gc that waits for the lock of the leases. What it has not deleted stays in the
// cache, and the next gc deletes it.
func TestKernelGCManySIGTERM(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, "")
	r.attachMany(1, 5, false)
	lock := r.Path("leases/demo/lock")
	f, err := os.Open(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(r.Path("bin/cni-exec"), "gc", "--all", "demo", "--conf-dir", r.Path("net.d"), "--cache-dir", r.Path("cni"))
	stderr := new(strings.Builder)
	cmd.Dir, cmd.Stderr, cmd.Env = r.Dir, stderr, append(os.Environ(), "CNI_PATH="+r.Path("bin"))
	if err := r.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	kerneltest.Until(t, "a gc that waits for the leases", func() bool { return flocked(cmd.Process.Pid) == lock })
	if n := r.veths(); n != 0 {
		t.Errorf("a lease is about to be released, and %d links are there", n)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if got := endedBy(cmd); got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d: %s", got, stderr)
	}
	if strings.Contains(stderr.String(), ": deleted ") {
		t.Errorf("no lease was released: %s", stderr)
	}
	if files, _ := filepath.Glob(r.Path("cni/results/*")); len(files) != 5 {
		t.Errorf("the cache has %q", files)
	}
	f.Close()
	r.must("gc", r.exec(nil, "gc", "--all", "demo"))
	r.nothingLeft()
}
