// Package rtnl speaks route netlink: namespaces, links, addresses, routes, rules,
// bridge VLANs and network settings. It knows nothing of CNI.
package rtnl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
)

// ErrNotNS is returned for a path that exists and is no network namespace.
var ErrNotNS = errors.New("not a network namespace")

// An NS is an open network namespace. It stays usable when its path is gone.
type NS struct {
	file *os.File

	mu     sync.Mutex
	parked []*thread // that [NS.Do] started and nobody uses
	closed bool
}

// OpenNS opens the network namespace at path. The error is os.ErrNotExist if
// there is no such file or the path is empty, and [ErrNotNS] if the file is
// something else or the path is none. The file is never created, and never
// waited for.
func OpenNS(path string) (*NS, error) {
	if path == "" {
		return nil, fmt.Errorf("network namespace: empty path: %w", os.ErrNotExist)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
	case leadsNowhere(err):
		return nil, fmt.Errorf("%w: %w", err, ErrNotNS)
	default:
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrNotNS)
	}
	return &NS{file: f}, nil
}

// leadsNowhere tells the errors of open(2) that no retry and no privilege will
// cure: a file among the folders of the path, links in a circle, a socket, a NUL
// in the path, and one that is too long.
func leadsNowhere(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.EINVAL, unix.ENAMETOOLONG} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) { return OpenNS("/proc/thread-self/ns/net") }

// FD returns the descriptor, valid until Close.
func (ns *NS) FD() int { return int(ns.file.Fd()) }

// Close gives the descriptor and the parked threads back.
func (ns *NS) Close() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, t := range ns.parked {
		close(t.todo)
	}
	ns.parked, ns.closed = nil, true
	return ns.file.Close()
}

// Same reports whether both are one namespace, by device and inode.
func (ns *NS) Same(o *NS) (bool, error) {
	a, err := disk.Of(ns.file)
	if err != nil {
		return false, err
	}
	b, err := disk.Of(o.file)
	if err != nil {
		return false, err
	}
	return a.Same(b), nil
}

// Do runs fn on a thread of the namespace's own, which ends when ns is closed
// and is used again until then, since starting one costs more than most of what
// is done there. It is for what netlink cannot say: sysctl files, tun devices
// and packet sockets. The program must lock its main goroutine to the first
// thread in an init function, or that thread could be the one used here. What
// fn changes about its thread, but for that, stays for later calls. A panic of
// fn is an error.
func (ns *NS) Do(fn func() error) error {
	t, err := ns.thread()
	if err != nil {
		return err
	}
	defer ns.park(t)
	t.todo <- fn
	return <-t.done
}

// A thread runs functions in a namespace, one after the other.
type thread struct {
	todo chan func() error // closed: the thread ends
	done chan error
}

// thread takes a parked thread or starts one.
func (ns *NS) thread() (*thread, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if n := len(ns.parked); n > 0 {
		t := ns.parked[n-1]
		ns.parked = ns.parked[:n-1]
		return t, nil
	}
	t := &thread{make(chan func() error), make(chan error, 1)}
	go t.run(ns.FD())
	return t, <-t.done
}

// run begins with telling whether the thread is in the namespace.
func (t *thread) run(fd int) {
	runtime.LockOSThread() // for good: the thread ends with this goroutine
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		t.done <- os.NewSyscallError("setns", err)
		return
	}
	t.done <- nil
	for fn := range t.todo {
		t.done <- guarded(fn)
	}
}

// guarded makes a panic an error: on this thread nobody else would catch it.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}

// park keeps a thread for the next call, or ends it when ns was closed meanwhile.
func (ns *NS) park(t *thread) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.closed {
		close(t.todo)
		return
	}
	ns.parked = append(ns.parked, t)
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
