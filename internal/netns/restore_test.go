package netns_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// A thread that cannot return to its network namespace, here since it lost the capability, is
// discarded. The caller continues in its namespace, and Do can be called again.
func TestKernelNotRestored(t *testing.T) {
	lockThread(t)
	home := threadNS(t)
	ns := kerneltest.NS(t)
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		var in string
		var thread int
		err := ns.Do(func() error {
			in, thread = threadNS(t), unix.Gettid()
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			if err := unix.Capset(&header, &caps[0]); err != nil {
				t.Error(err)
			}
			return want
		})
		if !errors.Is(err, want) || in == "" || in == home {
			t.Errorf("got %v in %q, want %v", err, in, want)
		}
		if now := threadNS(t); now != home {
			t.Fatalf("afterwards in %s, want %s", now, home)
		}
		kerneltest.Until(t, "the end of the thread", func() bool { return unix.Tgkill(unix.Getpid(), thread, 0) != nil })
	}
	if err := ns.Do(func() error { return nil }); err != nil {
		t.Error(err)
	}
}
