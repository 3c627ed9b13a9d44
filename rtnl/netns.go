// Package rtnl speaks route netlink: namespaces, links, addresses, routes, rules,
// bridge VLANs and network settings. It knows nothing of CNI.
package rtnl

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNotNS is returned for a path that exists and is no network namespace.
var ErrNotNS = errors.New("not a network namespace")

// An NS is an open network namespace. It stays usable when its path is gone.
type NS struct{ file *os.File }

// OpenNS opens the network namespace at path. The error is os.ErrNotExist if
// there is no such file or the path is empty, and [ErrNotNS] if the file is
// something else. The file is never created, and never waited for.
func OpenNS(path string) (*NS, error) {
	if path == "" {
		return nil, fmt.Errorf("network namespace: empty path: %w", os.ErrNotExist)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrNotNS)
	}
	return &NS{f}, nil
}

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) { return OpenNS("/proc/thread-self/ns/net") }

// FD returns the descriptor, valid until Close.
func (ns *NS) FD() int { return int(ns.file.Fd()) }

// Close gives the descriptor back.
func (ns *NS) Close() error { return ns.file.Close() }

// Same reports whether both are one namespace, by device and inode.
func (ns *NS) Same(o *NS) (bool, error) {
	a, err := ns.file.Stat()
	if err != nil {
		return false, err
	}
	b, err := o.file.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(a, b), nil
}

// Do runs fn on a thread of its own inside the namespace; the thread ends
// with it. It is for what netlink cannot say: sysctl files, tun devices and
// packet sockets. The program must lock its main goroutine to the first
// thread in an init function, or that thread could be the one used here.
func (ns *NS) Do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err := unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
			done <- os.NewSyscallError("setns", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// Enter runs fn in the namespace: at once if the thread is there already or ns
// is nil, else on a thread of its own.
func (ns *NS) Enter(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ns.entered() {
		return fn()
	}
	return ns.Do(fn)
}

// entered reports whether the calling thread is in the namespace.
func (ns *NS) entered() bool {
	if ns == nil {
		return true
	}
	var here, there unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &here) != nil || unix.Fstat(ns.FD(), &there) != nil {
		return false
	}
	return here.Dev == there.Dev && here.Ino == there.Ino
}
