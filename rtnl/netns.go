// Package rtnl speaks route netlink: namespaces, links, addresses, routes, rules,
// bridge VLANs and network settings. It knows nothing of CNI.
package rtnl

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/internal/nsid"
)

// An NS is an open network namespace. It stays usable when its path is gone.
//
// It is a bare descriptor: an os.File would start Go's poller and a thread for it.
type NS struct {
	fd   int
	call *nsid.NS // that of a call, which keeps sockets; nil: of none
}

// OpenNS opens the network namespace at path. The error is os.ErrNotExist if
// there is no such file or the path is empty, and [ErrNotNS] if the file is
// something else or the path leads through one. The file is never created, and
// never waited for.
func OpenNS(path string) (*NS, error) {
	fd, err := nsid.Open(path)
	if err != nil {
		return nil, err
	}
	return &NS{fd: fd}, nil
}

// Current opens the network namespace of the calling thread.
func Current() (*NS, error) { return OpenNS(nsid.Thread) }

// hostFD is in place of the descriptor of [Host].
const hostFD = -2

// Host returns the network namespace that the process runs in, which is that of the calling
// thread. It costs nothing, has no descriptor, and need not be closed.
func Host() *NS { return &NS{fd: hostFD} }

// In returns the namespace of a call, which is not that of the process. It need not be closed, and
// a [Conn] in it is one of the call.
func In(call *nsid.NS) *NS { return &NS{call.FD(), call} }

// HostOf is [Host] for a call; its sockets are the call's. Nil is none.
func HostOf(call *nsid.NS) *NS { return &NS{hostFD, call} }

// FD returns the descriptor, valid until Close.
func (ns *NS) FD() int { return ns.fd }

// Close closes the descriptor.
func (ns *NS) Close() error {
	if ns.fd == hostFD || ns.call != nil {
		return nil
	}
	err := unix.Close(ns.fd)
	ns.fd = -1
	return err
}

// An ID identifies a namespace among all that exist. Those of one that has ended may be
// another's later, see [Conn.NSCookie].
type ID = nsid.ID

// ID returns that of ns.
func (ns *NS) ID() (ID, error) {
	switch {
	case ns.isHost():
		return nsid.Current()
	case ns.call != nil:
		return ns.call.ID(), nil
	}
	return nsid.Of(ns.fd)
}

// Cookie is [nsid.Cookie] of ns.
func (ns *NS) Cookie() (uint64, error) {
	if ns.call != nil {
		return ns.call.Cookie()
	}
	return nsid.Cookie(ns.fd)
}

// isHost reports whether ns is that of the calling thread.
func (ns *NS) isHost() bool { return ns.fd == hostFD }

// Same reports whether both are one namespace.
func (ns *NS) Same(o *NS) (bool, error) {
	a, err := ns.ID()
	if err != nil {
		return false, err
	}
	b, err := o.ID()
	return a == b, err
}

// Socket opens a netlink socket in the namespace. The caller closes it.
func (ns *NS) Socket(protocol int) (fd int, err error) {
	if ns.call != nil && !ns.isHost() {
		return ns.call.Socket(protocol)
	}
	err = ns.Do(func() (err error) {
		fd, err = nsid.Netlink(protocol)
		return err
	})
	return fd, err
}

// Kept returns what the call of ns keeps for a protocol, which the caller does not close; else, where
// ns is of no call, what open returns, which the caller closes.
func Kept[C io.Closer](ns *NS, protocol int, open func() (C, error)) (c C, kept bool, err error) {
	if ns.call == nil {
		c, err = open()
		return c, false, err
	}
	c, err = nsid.Keep(ns.call, nsid.Socket{Protocol: protocol, Host: ns.isHost()}, open)
	return c, true, err
}

// IDAt returns that of the namespace that a path leads to; errors are those of [OpenNS].
func IDAt(path string) (ID, error) { return nsid.At(path) }

// At reports whether a path leads to the namespace. False for one that cannot be
// opened.
func (ns *NS) At(path string) bool {
	there, err := IDAt(path)
	if err != nil {
		return false
	}
	id, err := ns.ID()
	return err == nil && id == there
}

// Do runs fn on a thread in the namespace. It is for what netlink cannot do: sysctl files, tun
// devices, and the opening of sockets. fn must change nothing else of its thread, which runs
// other goroutines afterwards ([nsid.OnDiscardedThread] is for that). A panic of fn is the caller's.
func (ns *NS) Do(fn func() error) error {
	switch {
	case ns.isHost():
		return fn()
	case ns.call != nil:
		return ns.call.Within(fn)
	}
	same, err := ns.Same(Host())
	switch {
	case err != nil:
		return err
	case same: // also for a process without the privilege to enter
		return fn()
	}
	return nsid.Within(ns.Enter, fn)
}

// Enter moves the calling thread, which has to be one that is discarded ([nsid.OnDiscardedThread]).
func (ns *NS) Enter() error {
	return nsid.Enter(ns.fd)
}

// NewNS makes a network namespace, empty but for lo, which is down. It lives as
// long as the NS is open, or a process is in it.
func NewNS() (ns *NS, err error) {
	err = nsid.Within(func() error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) }, func() (err error) {
		ns, err = Current()
		return err
	})
	return ns, err
}
