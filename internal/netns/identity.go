package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An ID identifies an existing namespace by device and inode. The kernel may reuse the ID of a
// namespace that has ended, see [NS.Cookie]. The zero value is not the ID of any namespace.
type ID struct {
	Dev uint64 `json:"dev,omitempty"`
	Ino uint64 `json:"ino,omitempty"`
}

// String returns device:inode, in decimal.
func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Dev, id.Ino) }

// ID returns the namespace's ID.
func (ns *NS) ID() (ID, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.id != (ID{}) {
		return ns.id, nil
	}
	var st unix.Stat_t
	if ns.IsHost() {
		return identify(&st, unix.Stat(Thread, &st)) // of this thread
	}
	id, err := identify(&st, unix.Fstat(ns.fd, &st))
	ns.id = id
	return id, err
}

func identify(st *unix.Stat_t, err error) (ID, error) {
	if err != nil {
		return ID{}, fmt.Errorf("network namespace: %w", err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil
}

// IDAt returns the ID of the network namespace at path. Errors are those of [Open].
func IDAt(path string) (ID, error) {
	ns, err := Open(path)
	if err != nil {
		return ID{}, err
	}
	defer ns.Close()
	return ns.ID()
}

// IsAt reports whether ns was opened at a path, or the path leads to it. It is false if the path
// cannot be opened.
func (ns *NS) IsAt(path string) bool {
	if path == "" || path == ns.path {
		return path != ""
	}
	other, err := IDAt(path)
	if err != nil {
		return false
	}
	id, err := ns.ID()
	return err == nil && id == other
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

// Cookie returns a number that no other namespace has had since the host started, unlike an [ID].
// It is 0 before Linux 5.14. Without CAP_SYS_ADMIN over the namespace the error is
// os.ErrPermission.
//
// It is read once, from a route netlink socket, which the next caller of Socket for route netlink
// receives.
func (ns *NS) Cookie() (uint64, error) {
	ns.once.Do(func() {
		fd, err := ns.socket(unix.NETLINK_ROUTE)
		if err != nil {
			ns.denied = err
			return
		}
		ns.cookie, ns.denied = SocketCookie(fd)
		ns.mu.Lock()
		defer ns.mu.Unlock()
		ns.route = fd
	})
	return ns.cookie, ns.denied
}

// SocketCookie is [NS.Cookie] of a socket's namespace.
func SocketCookie(fd int) (uint64, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// HasCookie reports whether ns may have a recorded cookie: it is also true if either cookie is
// unknown, as without the privilege to enter.
func (ns *NS) HasCookie(cookie uint64) bool {
	if cookie == 0 {
		return true
	}
	now, err := ns.Cookie()
	return err != nil || now == cookie
}

// Look returns the cookie, and whether the namespace has a link of that name.
func (ns *NS) Look(link string) (cookie uint64, has bool, err error) {
	if cookie, err = ns.Cookie(); err != nil {
		return 0, false, err
	}
	fd, err := ns.Socket(unix.NETLINK_ROUTE) // the one from which the cookie was read
	if err != nil {
		return cookie, false, err
	}
	if req, err := unix.NewIfreq(link); err == nil && link != "" {
		has = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req) == nil
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.route >= 0 {
		return cookie, has, unix.Close(fd)
	}
	ns.route = fd
	return cookie, has, nil
}
