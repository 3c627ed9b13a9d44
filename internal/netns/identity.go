package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An ID identifies a namespace among all that exist, by device and inode. Once a namespace
// has ended the kernel may give its ID to a new one, see [NS.Cookie]. The zero value is that of
// none.
type ID struct {
	Dev uint64 `json:"dev,omitempty"`
	Ino uint64 `json:"ino,omitempty"`
}

// String returns device:inode, in decimal.
func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Dev, id.Ino) }

// ID returns that of ns.
func (ns *NS) ID() (ID, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.id != (ID{}) {
		return ns.id, nil
	}
	var st unix.Stat_t
	if ns.isHost() {
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

// IsAt reports whether ns was opened at a path, or the path leads to it. False for one that cannot be
// opened.
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

// Cookie returns a number that no other namespace has had since the host started, unlike an [ID]. It
// is 0 before Linux 5.14. Without CAP_SYS_ADMIN over the namespace the error is os.ErrPermission.
//
// It is asked once, of a route netlink socket that the first one who needs such a socket gets.
func (ns *NS) Cookie() (uint64, error) {
	ns.ask.Do(func() {
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

// SocketCookie is [NS.Cookie] of the namespace that a socket is in.
func SocketCookie(fd int) (uint64, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// HasCookie reports whether ns has a cookie that was recorded. Where one of both is not known, as for
// want of the privilege to enter, it may have.
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
	fd, err := ns.Socket(unix.NETLINK_ROUTE) // the one that was asked
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
