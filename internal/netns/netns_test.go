package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// threadNS returns the network namespace of the calling thread.
func threadNS(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return name
}

// lockThread locks the test to its thread, since threadNS is about the calling thread.
func lockThread(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

// fn runs in the namespace, and afterwards the thread is in the former one, even after an error or
// a panic.
func TestKernelDo(t *testing.T) {
	lockThread(t)
	home := threadNS(t)
	ns, other := kerneltest.NS(t), kerneltest.NS(t)
	var in string
	failed := errors.New("failed")
	tests := map[string]func() error{
		"nil":   func() error { in = threadNS(t); return nil },
		"error": func() error { in = threadNS(t); return failed },
		"panic": func() error { in = threadNS(t); panic(failed) },
		"nested": func() error {
			in = threadNS(t)
			err := other.Do(func() error {
				if there := threadNS(t); there == in || there == home {
					t.Errorf("the inner one is in %s", there)
				}
				return nil
			})
			if again := threadNS(t); again != in {
				t.Errorf("after the inner one: %s, want %s", again, in)
			}
			return err
		},
		"the same again": func() error { in = threadNS(t); return ns.Do(func() error { in = threadNS(t); return nil }) },
	}
	for name, fn := range tests {
		in = ""
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = p.(error)
				}
			}()
			return ns.Do(fn)
		}()
		if errors.Is(err, failed) != (name == "error" || name == "panic") || err != nil && !errors.Is(err, failed) {
			t.Errorf("%s: %v", name, err)
		}
		if in == "" || in == home {
			t.Errorf("%s: ran in %q", name, in)
		}
		if now := threadNS(t); now != home {
			t.Fatalf("%s: afterwards in %s, want %s", name, now, home)
		}
	}
	host := netns.Host()
	if err := host.Do(func() error { in = threadNS(t); return nil }); err != nil || in != home {
		t.Errorf("of the host: %v, in %s", err, in)
	}
}

// Root of a user namespace whose network namespace has another owner can leave that but not enter
// it again: Do then discards a thread, and the other threads are unaffected.
func TestKernelDoWithoutReturn(t *testing.T) {
	if os.Getenv("CNIBOX_TEST_NO_WAY_BACK") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestKernelDoWithoutReturn$", "-test.v")
		cmd.Env = append(os.Environ(), "CNIBOX_TEST_NO_WAY_BACK=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
		var out []byte
		kerneltest.Need(t, "CONFIG_USER_NS", func() (err error) {
			out, err = cmd.CombinedOutput()
			if ended := new(exec.ExitError); errors.As(err, &ended) {
				return nil // out has the reason
			}
			return err
		})
		if !strings.Contains(string(out), "--- PASS: TestKernelDoWithoutReturn") {
			t.Errorf("%s", out)
		}
		return
	}
	lockThread(t)
	home := threadNS(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var in string
	if err := ns.Do(func() error { in = threadNS(t); return nil }); err != nil || in == "" || in == home {
		t.Errorf("%v, in %q", err, in)
	}
	func() {
		defer func() {
			if p := recover(); p != "of fn" {
				t.Errorf("a panic is %v", p)
			}
		}()
		ns.Do(func() error { panic("of fn") })
	}()
	c, err := rtnl.Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if links, err := c.Links(); err != nil || len(links) != 1 {
		t.Errorf("%d links, %v", len(links), err)
	}
	if now := threadNS(t); now != home {
		t.Errorf("afterwards in %s, want %s", now, home)
	}
}

// anyThread marks a process in which any goroutine may run on the first thread.
const anyThread = "CNIBOX_TEST_ANY_THREAD"

// TestMain checks OnDiscardedThread in such a process. kerneltest has locked the main goroutine to
// the first thread.
func TestMain(m *testing.M) {
	if os.Getenv(anyThread) == "" {
		os.Exit(m.Run())
	}
	runtime.GOMAXPROCS(1)
	runtime.UnlockOSThread()
	first := false
	for range 100 {
		netns.OnDiscardedThread(func() error {
			first = first || unix.Gettid() == unix.Getpid()
			return nil
		})
	}
	if first {
		os.Exit(1)
	}
}

// OnDiscardedThread does not use the first thread, and its thread ends with the function.
func TestKernelOnDiscardedThread(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), anyThread+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("on the first thread: %v\n%s", err, out)
	}
	var thread int
	failed := errors.New("failed")
	err := netns.OnDiscardedThread(func() error {
		thread = unix.Gettid()
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	kerneltest.Until(t, "the end of the thread", func() bool { return unix.Tgkill(unix.Getpid(), thread, 0) != nil })
}

// Concurrent calls of Do run in their own namespaces, and leave no thread in another one.
func TestKernelDoConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		ns := kerneltest.NS(t)
		if err := ns.SetSysctl("net/ipv4/ip_default_ttl", fmt.Sprint(100+i)); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wg.Go(func() {
				for range 20 {
					err := ns.Do(func() error {
						runtime.Gosched()
						b, err := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl")
						if got := strings.TrimSpace(string(b)); got != fmt.Sprint(100+i) {
							t.Errorf("got %s of another namespace than %d", got, i)
						}
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	home := threadNS(t)
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		if at, err := os.Readlink(thread); err == nil && at != home {
			t.Errorf("%s is %s, want %s", thread, at, home)
		}
	}
}

func TestKernelNew(t *testing.T) {
	lockThread(t)
	home := threadNS(t)
	a, b := kerneltest.NS(t), kerneltest.NS(t)
	if now := threadNS(t); now != home {
		t.Fatalf("afterwards in %s, want %s", now, home)
	}
	if same, err := a.Same(b); same || err != nil {
		t.Errorf("two are one: %t, %v", same, err)
	}
	links, err := kerneltest.Dial(t, a).Links()
	if err != nil || len(links) != 1 || links[0].Name != "lo" {
		t.Errorf("it has %v, %v", links, err)
	}
}

// A file that is not a network namespace and a missing one are different errors, and Open never
// blocks.
func TestKernelOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	circle := filepath.Join(dir, "circle")
	if err := os.Symlink(circle, circle); err != nil {
		t.Fatal(err)
	}
	tests := map[string]error{
		"/proc/self/ns/net":           nil,
		"":                            os.ErrNotExist,
		filepath.Join(dir, "none"):    os.ErrNotExist,
		filepath.Join(dir, "no/such"): os.ErrNotExist,
		file:                          netns.ErrNotNS,
		filepath.Join(file, "below"):  netns.ErrNotNS,
		dir:                           netns.ErrNotNS,
		fifo:                          netns.ErrNotNS,
		circle:                        netns.ErrNotNS,
		"/proc/self/ns/uts":           netns.ErrNotNS,
		"/dev/null":                   netns.ErrNotNS,
		"a\x00b":                      netns.ErrNotNS,
		strings.Repeat("n", 300):      netns.ErrNotNS,
	}
	for path, want := range tests {
		ns, err := netns.Open(path)
		if err == nil {
			ns.Close()
		}
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
	}
}

// Host is the namespace of the calling thread, even inside Do. Close does nothing.
func TestKernelHost(t *testing.T) {
	ns := kerneltest.NS(t)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	host := netns.Host()
	same := func(what string, want *netns.NS) {
		t.Helper()
		if ok, err := host.Same(want); err != nil || !ok {
			t.Errorf("%s: another namespace, %v", what, err)
		}
	}
	same("outside", here)
	if err := ns.Do(func() error {
		same("inside", ns)
		return host.Do(func() error { same("inside Do", ns); return nil })
	}); err != nil {
		t.Fatal(err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	same("closed", here)
	if id, err := netns.IDAt(kerneltest.NSPath(t, ns)); err != nil || !ns.IsAt(kerneltest.NSPath(t, ns)) || ns.IsAt("/nowhere") {
		t.Errorf("ID of a path: %v, %v", id, err)
	}
}

// IsAt holds for each path to the namespace, for the path by which it was opened even if that is
// gone, and for no other.
func TestKernelIsAt(t *testing.T) {
	ns, other := kerneltest.NS(t), kerneltest.NS(t)
	for path, want := range map[string]bool{
		kerneltest.NSPath(t, ns): true, kerneltest.NSPath(t, ns) + "/.": false, kerneltest.NSPath(t, other): false, "": false, "/nowhere": false,
		netns.Thread: false,
	} {
		if got := ns.IsAt(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(kerneltest.NSPath(t, ns), link); err != nil {
		t.Fatal(err)
	}
	again, err := netns.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if !again.IsAt(link) || !again.IsAt(kerneltest.NSPath(t, ns)) || ns.IsAt(link) {
		t.Error("it is not at the path where it was opened, or another is")
	}
}
