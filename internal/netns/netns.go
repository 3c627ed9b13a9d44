// Package netns opens network namespaces, identifies them, and runs code in them: opening sockets,
// sysctls, and other operations that netlink lacks. It does not depend on CNI.
package netns

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
)

// ErrNotNS is the error for a path that exists and is not a network namespace.
var ErrNotNS = errors.New("not a network namespace")

// Thread is the path of the network namespace of the thread that opens it.
const Thread = "/proc/thread-self/ns/net"

// An NS is an open network namespace, or that of the process ([Host]). It stays usable after its
// path is removed. Several goroutines may use it.
//
// It is a plain descriptor, since an os.File would start Go's poller and a thread for it.
type NS struct {
	path string // where it was opened; empty: not opened by a path
	fd   int    // hostFD: that of the calling thread

	once   sync.Once // for the next two fields
	cookie uint64
	denied error // why the cookie is unknown

	mu    sync.Mutex // guards the following fields; not held while a function runs
	id    ID         // zero: not read yet
	route int        // the socket from which the cookie was read; -1: none, or in use
}

// hostFD replaces the descriptor of [Host].
const hostFD = -2

// Open opens the network namespace at path. The error is os.ErrNotExist if there is no such file or
// the path is empty, and [ErrNotNS] if the file is something else or the path leads through one.
// Open never creates the file and never blocks on it.
func Open(path string) (*NS, error) {
	if path == "" {
		return nil, &os.PathError{Op: "open", Err: unix.ENOENT}
	}
	fault.Done(fault.Namespaces, 1)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		err = &os.PathError{Op: "open", Path: path, Err: err}
		if permanent(err) {
			return nil, fmt.Errorf("%w: %w", err, ErrNotNS)
		}
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, ErrNotNS)
	}
	return &NS{path: path, fd: fd, route: -1}, nil
}

// Reason returns why [Open] rejected a path, without the path, for errors that contain it already.
func Reason(err error) error {
	var file *os.PathError
	switch {
	case errors.As(err, &file):
		return file.Err
	case errors.Is(err, ErrNotNS):
		return ErrNotNS
	}
	return err
}

// permanent reports whether neither a retry nor a privilege resolves an error of open(2): a file as
// a directory of the path, circular links, a socket, a NUL in the path, or a path that is too long.
func permanent(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.EINVAL, unix.ENAMETOOLONG} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) {
	ns, err := Open(Thread)
	if err == nil {
		ns.path = "" // in another thread it leads to another namespace
	}
	return ns, err
}

// Host returns the network namespace of the process, which is that of the calling thread. It has no
// descriptor and need not be closed.
func Host() *NS { return &NS{fd: hostFD, route: -1} }

// New creates a network namespace that has only lo, which is down. It lives as long as the NS is
// open, or a process is in it.
func New() (ns *NS, err error) {
	var h home
	defer h.close()
	err = h.runIn(func() error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) }, func() (err error) {
		ns, err = Current()
		return err
	})
	return ns, err
}

// OfSocket opens the network namespace of a socket.
func OfSocket(socket int) (*NS, error) {
	fd, err := unix.IoctlRetInt(socket, unix.SIOCGSKNS)
	if err != nil {
		return nil, os.NewSyscallError("ioctl SIOCGSKNS", err)
	}
	return &NS{fd: fd, route: -1}, nil
}

// Path returns the path at which the namespace was opened; empty if it was not opened by a path.
func (ns *NS) Path() string { return ns.path }

// FD returns the descriptor, valid until Close.
func (ns *NS) FD() int { return ns.fd }

// Close closes the namespace. Nil is a namespace that was never opened.
func (ns *NS) Close() error {
	if ns == nil {
		return nil
	}
	var errs []error
	for _, fd := range []int{ns.route, ns.fd} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	ns.route = -1
	if !ns.IsHost() {
		ns.fd = -1
	}
	return errors.Join(errs...)
}

// IsHost reports whether ns is from [Host].
func (ns *NS) IsHost() bool { return ns.fd == hostFD }

// Do runs fn on a thread in the namespace, for operations that netlink lacks: sysctl files, tun
// devices, and the opening of sockets. fn must change nothing else of its thread, which runs other
// goroutines afterwards (else use [OnDiscardedThread]). A panic of fn propagates to the caller.
func (ns *NS) Do(fn func() error) error {
	if ns.IsHost() {
		return fn()
	}
	same, err := ns.Same(Host())
	switch {
	case err != nil:
		return err
	case same: // also for a process without the privilege to enter
		return fn()
	}
	var h home
	defer h.close()
	return h.runIn(ns.Enter, fn)
}

// Socket opens a netlink socket in the namespace. The caller closes it.
func (ns *NS) Socket(protocol int) (fd int, err error) {
	if protocol == unix.NETLINK_ROUTE {
		ns.mu.Lock()
		fd, ns.route = ns.route, -1
		ns.mu.Unlock()
		if fd >= 0 {
			return fd, nil
		}
	}
	return ns.socket(protocol)
}

func (ns *NS) socket(protocol int) (fd int, err error) {
	fault.Done(fault.Sockets, 1)
	err = ns.Do(func() error {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}
