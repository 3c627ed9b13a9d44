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
//
// It is a bare descriptor: an os.File would make Go's poller, and a thread that waits in
// it, for what nobody ever waits for.
type NS struct{ fd int }

// OpenNS opens the network namespace at path. The error is os.ErrNotExist if
// there is no such file or the path is empty, and [ErrNotNS] if the file is
// something else or the path is none. The file is never created, and never
// waited for.
func OpenNS(path string) (*NS, error) {
	if path == "" {
		return nil, fmt.Errorf("network namespace: empty path: %w", os.ErrNotExist)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		err = &os.PathError{Op: "open", Path: path, Err: err}
	}
	switch {
	case err == nil:
	case leadsNowhere(err):
		return nil, fmt.Errorf("%w: %w", err, ErrNotNS)
	default:
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, ErrNotNS)
	}
	return &NS{fd}, nil
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

// threadNS is the network namespace of whichever thread looks.
const threadNS = "/proc/thread-self/ns/net"

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) { return OpenNS(threadNS) }

// FD returns the descriptor, valid until Close.
func (ns *NS) FD() int { return ns.fd }

// Close gives the descriptor back.
func (ns *NS) Close() error {
	err := unix.Close(ns.fd)
	ns.fd = -1
	return err
}

// An ID tells a namespace from all others that exist, as device and inode do. Those of
// one that has ended may be another's later.
type ID struct{ dev, ino uint64 }

// ID returns that of ns; nil is the namespace of the calling thread.
func (ns *NS) ID() (ID, error) {
	var st unix.Stat_t
	var err error
	if ns == nil {
		err = unix.Stat(threadNS, &st)
	} else {
		err = unix.Fstat(ns.fd, &st)
	}
	if err != nil {
		return ID{}, fmt.Errorf("network namespace: %w", err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil
}

// Same reports whether both are one namespace.
func (ns *NS) Same(o *NS) (bool, error) {
	a, err := ns.ID()
	if err != nil {
		return false, err
	}
	b, err := o.ID()
	return a == b, err
}

// Do runs fn in the namespace, on the calling thread, which is back where it came from
// when Do returns; nil is the namespace it is in. It is for what netlink cannot say:
// sysctl files, tun devices, and the opening of sockets. What else fn changes about the
// thread stays so.
func (ns *NS) Do(fn func() error) error {
	if ns == nil {
		return fn()
	}
	v, err := newVisit()
	if err != nil {
		return err
	}
	defer v.end()
	same, err := ns.Same(v.home)
	if err != nil {
		return err
	}
	if !same { // who may not enter may be there already
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		v.away = true
	}
	return fn()
}

// NewNS makes a network namespace, empty but for lo, which is down. It lives as
// long as the NS is open, or a process is in it.
func NewNS() (*NS, error) {
	v, err := newVisit()
	if err != nil {
		return nil, err
	}
	defer v.end()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	v.away = true
	return Current()
}

// A visit is the time that a thread is in another namespace. No other goroutine may use
// it meanwhile.
//
// With threads of their own for such work there would be no way back to care for. They
// cost a tenth of an ADD: each is one to start, and one to start it from, since no locked
// thread is copied, and each piece of work is two switches from processor to processor.
type visit struct {
	home *NS  // to go back to
	away bool // it has been left
}

// newVisit remembers where the thread is, and locks it.
func newVisit() (*visit, error) {
	runtime.LockOSThread()
	home, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return &visit{home: home}, nil
}

// end brings the thread back. For that the kernel needs but memory; without it the program
// ends, as all that it did next, an undo too, it would do in the wrong place.
func (v *visit) end() {
	if v.away {
		if err := unix.Setns(v.home.fd, unix.CLONE_NEWNET); err != nil {
			fmt.Fprintln(os.Stderr, "cnibox: no way back from a network namespace: setns:", err)
			os.Exit(1)
		}
	}
	v.home.Close()
	runtime.UnlockOSThread()
}
