package nsid

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Cookie returns a number that no other namespace has had since the host started, unlike an
// [ID]: that of SO_NETNS_COOKIE, for which it enters the open namespace. It is 0 before Linux
// 5.14. Without CAP_SYS_ADMIN over the namespace the error is os.ErrPermission.
func Cookie(fd int) (cookie uint64, err error) {
	cookie, _, err = Look(fd, "")
	return cookie, err
}

// Look is [Cookie], and reports whether the namespace has a link of that name.
func Look(fd int, link string) (cookie uint64, has bool, err error) {
	err = Within(func() error { return Enter(fd) }, func() error {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(s)
		if req, err := unix.NewIfreq(link); err == nil && link != "" {
			has = unix.IoctlIfreq(s, unix.SIOCGIFINDEX, req) == nil
		}
		cookie, err = SocketCookie(s)
		return err
	})
	return cookie, has, err
}

// HasCookie reports whether an open namespace has a cookie that was recorded. Where one of both is
// not known, as for want of the privilege to enter, it may have.
func HasCookie(fd int, cookie uint64) bool {
	if cookie == 0 {
		return true
	}
	now, err := Cookie(fd)
	return err != nil || now == cookie
}

// SocketCookie is [Cookie] for the namespace of a socket, which it need not enter.
func SocketCookie(fd int) (uint64, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// Enter moves the calling thread to an open namespace. The thread has to be one that is
// discarded ([OnDiscardedThread]) or restored ([Within]).
func Enter(fd int) error {
	return os.NewSyscallError("setns", unix.Setns(fd, unix.CLONE_NEWNET))
}

// Within runs enter, which moves the thread to another namespace, and fn there. Then
// the thread's namespace is restored. If that fails, as in a user namespace that has the
// host's network or without memory, the thread is discarded, and the caller goes on in the
// namespace where it was.
func Within(enter, fn func() error) error {
	home := -1
	defer func() {
		if home >= 0 {
			unix.Close(home)
		}
	}()
	return within(func() (_ int, err error) {
		if home < 0 {
			home, err = openThread()
		}
		return home, err
	}, enter, fn)
}

// within is [Within] with a function that opens the namespace of the thread, once.
func within(open func() (home int, err error), enter, fn func() error) error {
	return onThread(func() (restored bool, err error) {
		home, err := open()
		if err != nil {
			return true, err
		}
		// The first thread cannot be discarded.
		if firstThread() && Enter(home) != nil {
			return true, within(open, enter, fn)
		}
		defer func() { restored = Enter(home) == nil }()
		if err := enter(); err != nil {
			return false, err
		}
		return false, fn()
	})
}

// openThread opens the namespace of the calling thread.
func openThread() (fd int, err error) {
	fd, err = unix.Open(Thread, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("network namespace: %w", &os.PathError{Op: "open", Path: Thread, Err: err})
	}
	return fd, nil
}

// OnDiscardedThread runs fn on a thread that is discarded after it, whatever fn has changed of
// the thread, and waits for it. It is never the first thread, which cannot end, and by which
// /proc/self shows the process.
func OnDiscardedThread(fn func() error) error {
	return onThread(func() (restored bool, err error) {
		if firstThread() {
			return true, OnDiscardedThread(fn)
		}
		return false, fn()
	})
}

// firstThread reports whether the calling thread is the one that the process began with.
func firstThread() bool { return unix.Gettid() == unix.Getpid() }

// onThread runs fn on a thread that does nothing else meanwhile, waits for it, and discards
// the thread unless fn has restored it. A panic of fn is the caller's, and so is its
// [runtime.Goexit].
func onThread(fn func() (restored bool, err error)) error {
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
