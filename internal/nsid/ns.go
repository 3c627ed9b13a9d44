package nsid

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// An NS is the network namespace of a call, opened once for all plugins of it, with what is asked of
// it and of the host once: its ID and cookie, the way back to the host, and sockets ([Keep]).
//
// Several goroutines may use it, which are in the namespace of the process.
type NS struct {
	path string
	fd   int
	id   ID

	ask    sync.Once
	cookie uint64
	denied error // why there is no cookie

	mu    sync.Mutex // of what follows; not held while a function runs
	home  int        // the namespace of the process; -1: not entered yet
	route int        // the socket that was asked for the cookie; -1: none, or it is in use
	kept  map[Socket]io.Closer
}

// A Socket names what [Keep] keeps: a socket of a netlink protocol, in the namespace or on the host.
type Socket struct {
	Protocol int
	Host     bool
}

// OpenNS opens the network namespace at path. Errors are those of [Open].
func OpenNS(path string) (*NS, error) {
	fd, err := Open(path)
	if err != nil {
		return nil, err
	}
	id, err := Of(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &NS{path: path, fd: fd, id: id, home: -1, route: -1, kept: map[Socket]io.Closer{}}, nil
}

// Path is where the namespace was opened.
func (n *NS) Path() string { return n.path }

// FD returns the descriptor, valid until Close.
func (n *NS) FD() int { return n.fd }

// ID returns that of the namespace.
func (n *NS) ID() ID { return n.id }

// Cookie is [Cookie], asked once: of a socket that the first plugin will need.
func (n *NS) Cookie() (uint64, error) {
	n.ask.Do(func() {
		fd, err := n.open(unix.NETLINK_ROUTE)
		if err != nil {
			n.denied = err
			return
		}
		n.cookie, n.denied = SocketCookie(fd)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.route = fd
	})
	return n.cookie, n.denied
}

// Look is [Look]: the cookie, and whether the namespace has a link of that name.
func (n *NS) Look(link string) (cookie uint64, has bool, err error) {
	if cookie, err = n.Cookie(); err != nil {
		return 0, false, err
	}
	fd, err := n.Socket(unix.NETLINK_ROUTE) // the one that was asked
	if err != nil {
		return cookie, false, err
	}
	if req, err := unix.NewIfreq(link); err == nil && link != "" {
		has = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req) == nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.route >= 0 {
		return cookie, has, unix.Close(fd)
	}
	n.route = fd
	return cookie, has, nil
}

// Socket opens a netlink socket in the namespace. The caller closes it.
func (n *NS) Socket(protocol int) (fd int, err error) {
	if protocol == unix.NETLINK_ROUTE {
		n.mu.Lock()
		fd, n.route = n.route, -1
		n.mu.Unlock()
		if fd >= 0 {
			return fd, nil
		}
	}
	return n.open(protocol)
}

func (n *NS) open(protocol int) (fd int, err error) {
	err = n.Within(func() (err error) {
		fd, err = Netlink(protocol)
		return err
	})
	return fd, err
}

// Netlink opens a netlink socket in the namespace of the calling thread.
func Netlink(protocol int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// Within is the function [Within] for the namespace.
func (n *NS) Within(fn func() error) error {
	return within(func() (home int, err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.home < 0 {
			n.home, err = openThread()
		}
		return n.home, err
	}, func() error { return Enter(n.fd) }, fn)
}

// Keep returns what n keeps under a name until it is closed: the first time, what open returns.
func Keep[C io.Closer](n *NS, name Socket, open func() (C, error)) (c C, err error) {
	n.mu.Lock()
	if c, ok := n.kept[name].(C); ok {
		n.mu.Unlock()
		return c, nil
	}
	n.mu.Unlock()
	if c, err = open(); err != nil { // without the lock, which it may need
		return c, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if first, ok := n.kept[name].(C); ok { // opened by another goroutine meanwhile
		c.Close()
		return first, nil
	}
	n.kept[name] = c
	return c, nil
}

// Close closes it, and what it keeps. Nil is a namespace that was never opened.
func (n *NS) Close() error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, c := range n.kept {
		errs = append(errs, c.Close())
	}
	for _, fd := range []int{n.route, n.home, n.fd} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	n.kept, n.route, n.home, n.fd = nil, -1, -1, -1
	return errors.Join(errs...)
}
