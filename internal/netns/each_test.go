package netns_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// The files in /proc have the same addresses as netlink.
func TestKernelProcessAddrs(t *testing.T) {
	ns := kerneltest.NS(t)
	kerneltest.LoUp(t, ns)
	conn := kerneltest.Dial(t, ns)
	lo, err := conn.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("127.0.0.1")}
	for _, a := range want[:2] {
		if err := conn.Do(rtnl.NewAddr(lo.Index, rtnl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()-4), NoDAD: true})); err != nil {
			t.Fatal(err)
		}
	}
	var got []netip.Addr
	if err := ns.Do(func() (err error) { got, err = netns.ProcessAddrs("/proc/thread-self"); return err }); err != nil {
		t.Fatal(err)
	}
	used := map[netip.Addr]bool{}
	for _, a := range got {
		used[a] = true
	}
	for _, a := range want {
		if !used[a] {
			t.Errorf("%s is missing in %v", a, used)
		}
	}
	if used[netip.MustParseAddr("10.1.0.0")] {
		t.Errorf("a network is taken for an address: %v", used)
	}
}

// eachNS calls netns.Each with a function for the namespaces that can be opened.
func eachNS(t *testing.T, fn func(*netns.NS) error) (hidden string) {
	t.Helper()
	hidden, err := netns.Each(func(_ string, ns *netns.NS) error {
		if ns == nil {
			return nil
		}
		return fn(ns)
	})
	if err != nil {
		t.Fatal(err)
	}
	return hidden
}

// idOf returns the ID of a namespace.
func idOf(t *testing.T, ns *netns.NS) netns.ID {
	t.Helper()
	id, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// inMounts starts a process in a mount namespace of its own, in which the network namespace, which
// it closes, is mounted; the process is in another one.
func inMounts(t *testing.T, ns *netns.NS) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "1000")
	err := netns.OnDiscardedThread(func() error {
		return cmp.Or(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), ns.Bind(file), sleep.Start())
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sleep.Process.Kill(); sleep.Wait() })
	ns.Close()
}

// Each finds a namespace once that only a descriptor refers to, a thread is in, or is mounted in
// another mount namespace only, and none that has ended.
func TestKernelEachNS(t *testing.T) {
	open, thread, mounted, gone := kerneltest.NS(t), kerneltest.NS(t), kerneltest.NS(t), kerneltest.NS(t)
	want := map[string]netns.ID{"an open one": idOf(t, open), "a thread's": idOf(t, thread), "a mounted one": idOf(t, mounted)}
	ended := idOf(t, gone)
	const key, mark = "net/ipv4/ip_default_ttl", "99" // another test's new namespace may have its number
	if err := gone.SetSysctl(key, mark); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	inMounts(t, mounted)
	in, end := make(chan error), make(chan bool)
	defer close(end)
	go netns.OnDiscardedThread(func() error {
		in <- errors.Join(thread.Enter(), thread.Close())
		<-end
		return nil
	})
	if err := <-in; err != nil {
		t.Fatal(err)
	}
	seen := map[netns.ID]int{}
	eachNS(t, func(ns *netns.NS) error {
		id, err := ns.ID()
		seen[id]++
		if id == ended {
			if ttl, _ := ns.Sysctl(key); ttl == mark {
				t.Error("one that has ended is seen")
			}
		}
		return err
	})
	for what, id := range want {
		if seen[id] != 1 {
			t.Errorf("%s is seen %d times", what, seen[id])
		}
	}
}

// In another PID namespace Each says that there may be others.
func TestKernelEachHidden(t *testing.T) {
	kerneltest.NS(t) // skips without privilege
	if os.Getenv("CNIBOX_EACH") != "" {
		hidden := eachNS(t, func(*netns.NS) error { return nil })
		fmt.Println("hidden: " + hidden)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "-p", "-f", "-m", "--propagation", "private", "--mount-proc", self, "-test.run", "^TestKernelEachHidden$")
	c.Env = append(os.Environ(), "CNIBOX_EACH=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hidden: /proc does not show all processes") {
		t.Errorf("%v: %s", err, out)
	}
}

// Where /proc shows a namespace that cannot be opened, Each says that it may be any; in a user namespace it is the
// host's, in which root of the user namespace has nothing.
func TestKernelEachOfHost(t *testing.T) {
	if os.Getenv("CNIBOX_EACH") != "" {
		hidden := eachNS(t, func(*netns.NS) error { return nil })
		fmt.Println("hidden: " + hidden)
		return
	}
	ns := kerneltest.NS(t)
	if kerneltest.OneUser() {
		t.Skip("SKIPPED: the host's namespaces cannot be made in a user namespace")
	}
	inMounts(t, ns)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		wrapper []string
		hidden  bool
	}{
		"without capabilities": {[]string{"setpriv", "--bounding-set=-sys_ptrace,-sys_admin", "--inh-caps=-sys_ptrace,-sys_admin"}, true},
		"in a user namespace":  {[]string{"unshare", "--user", "--map-root-user", "--net"}, false},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			c := exec.Command(tt.wrapper[0], append(tt.wrapper[1:], self, "-test.run", "^TestKernelEachOfHost$")...)
			c.Env = append(os.Environ(), "CNIBOX_EACH=1")
			out, err := c.CombinedOutput()
			_, hidden, asked := strings.Cut(string(out), "hidden: ")
			if err != nil || !asked || strings.Contains(hidden, " is mounted at ") != tt.hidden { // others' tests have some, too
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// BenchmarkKernelEach has 500 processes more, each in a mount and a network namespace of its own. It
// reports the processor's time, which another load does not change.
func BenchmarkKernelEach(b *testing.B) {
	for range 500 {
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Process.Kill(); c.Wait() })
	}
	used := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	for b.Loop() {
		if _, err := netns.Each(func(string, *netns.NS) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(used()-before)/float64(b.N)/1e6, "cpu-ms/op")
}
