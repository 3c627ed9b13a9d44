package rtnl

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewNS makes a network namespace, empty but for lo, which is down. It lives as
// long as the NS is open, or a process is in it. The calling thread
// stays where it is.
func NewNS() (*NS, error) {
	type made struct {
		ns  *NS
		err error
	}
	done := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{nil, os.NewSyscallError("unshare", err)}
			return
		}
		ns, err := Current()
		done <- made{ns, err}
	}()
	m := <-done
	return m.ns, m.err
}
