package netns

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// Enter moves the calling thread to the namespace; the thread must be discarded afterwards
// ([OnDiscardedThread]).
func (ns *NS) Enter() error {
	return os.NewSyscallError("setns", setns(ns.fd))
}

func setns(fd int) error {
	if fault.Enter != nil {
		if err := fault.Enter(); err != nil {
			return err
		}
	}
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

// A home is the process's namespace, to which threads return. It is opened when it is first needed.
type home struct {
	mu   sync.Mutex
	open bool
	fd   int
}

// descriptor opens the namespace of the calling thread in the first call.
func (h *home) descriptor() (fd int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return h.fd, nil
	}
	if h.fd, err = unix.Open(Thread, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("network namespace: %w", &os.PathError{Op: "open", Path: Thread, Err: err})
	}
	h.open = true
	return h.fd, nil
}

func (h *home) close() error {
	if !h.open {
		return nil
	}
	h.open = false
	return unix.Close(h.fd)
}

// runIn runs enter, which moves the thread to another namespace, then fn, and restores the thread's
// namespace. If that fails, as in a user namespace with the host's network or without memory, the
// thread is discarded, and the caller continues in its former namespace.
func (h *home) runIn(enter, fn func() error) error {
	return onThread(func() (restored bool, err error) {
		fd, err := h.descriptor()
		if err != nil {
			return true, err
		}
		restore := func() error { return setns(fd) }
		// The first thread cannot be discarded.
		if firstThread() && restore() != nil {
			return true, h.runIn(enter, fn)
		}
		defer func() { restored = restore() == nil }()
		if err := enter(); err != nil {
			return false, err
		}
		return false, fn()
	})
}

// OnDiscardedThread runs fn on a thread, waits for it, and discards the thread with all changes of
// fn. It never uses the first thread, which cannot end, and which represents the process in
// /proc/self.
func OnDiscardedThread(fn func() error) error {
	return onThread(func() (restored bool, err error) {
		if firstThread() {
			return true, OnDiscardedThread(fn)
		}
		return false, fn()
	})
}

// firstThread reports whether the calling thread is the process's first thread.
func firstThread() bool { return unix.Gettid() == unix.Getpid() }

// onThread runs fn on a locked thread, waits for it, and discards the thread unless fn has restored
// it. A panic or a [runtime.Goexit] of fn propagates to the caller.
func onThread(fn func() (restored bool, err error)) error {
	fault.Done(fault.Threads, 1)
	var err error
	var failure any
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		restored := false
		defer func() {
			failure = recover()
			if restored {
				runtime.UnlockOSThread()
			}
		}()
		restored, err = fn()
		returned = true
	}()
	<-done
	switch {
	case failure != nil:
		panic(failure)
	case !returned:
		runtime.Goexit()
	}
	return err
}
