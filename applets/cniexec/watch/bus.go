package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/dbus"
	"github.com/cnibox/cnibox/spec"
)

// Firewalld is the name of firewalld on the bus.
const Firewalld = "org.fedoraproject.FirewallD1"

// The pauses of watchFirewalld before it connects again: to a bus that was just started, and to one
// that it cannot use.
const (
	busPause    = time.Second
	badBusPause = time.Minute
)

// watchFirewalld reports events of firewalld from the system bus, until ctx ends. It waits for the
// bus if there is none, and connects again after a restart of the bus. It calls tried after it has
// tried to connect.
func (w *Watch) watchFirewalld(ctx context.Context, event func(why string), tried func()) {
	for ctx.Err() == nil {
		made, err := watchDirs(w.Sockets) // before it connects, so that it does not miss a new bus
		if err != nil {
			w.Warn("reload: firewalld is not watched: %v", err)
			tried()
			return
		}
		connected, err := followFirewalld(ctx, w.Sockets, event, tried)
		tried()
		pause := busPause
		switch {
		case ctx.Err() != nil:
		case connected:
			w.Warn("reload: %v", err)
		case noBus(err):
			stop := context.AfterFunc(ctx, func() { made.Close() }) // to end the read
			_, _ = made.Read(make([]byte, 4096))                    // the next try shows what has happened
			stop()
		default:
			w.Warn("reload: firewalld is not watched: %v", err)
			pause = badBusPause
		}
		made.Close()
		sleep(ctx, pause)
	}
}

// followFirewalld connects to the system bus and reports events of firewalld until the connection
// ends. The connection is the first event, since earlier events were not seen.
func followFirewalld(ctx context.Context, sockets []string, event func(why string), tried func()) (connected bool, err error) {
	bus, err := dbus.Dial(ctx, sockets...)
	if err != nil {
		return false, err
	}
	defer bus.Close()
	err = bus.Listen(
		"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='"+Firewalld+"'",
		"type='signal',sender='"+Firewalld+"',interface='"+Firewalld+"',member='Reloaded'")
	if err != nil {
		return false, err
	}
	event("the system bus was started")
	tried()
	for {
		name, args, err := bus.Signal()
		switch {
		case err != nil:
			return true, err
		case name == "Reloaded":
			event("firewalld has reloaded")
		case name == "NameOwnerChanged" && len(args) == 3 && args[2] != "": // otherwise it has ended
			event("firewalld was started")
		}
	}
}

// BusSockets returns the sockets of the system bus. With an empty address it uses the default one.
func BusSockets(address string) ([]string, error) {
	if address == "" {
		return []string{dbus.SystemBus}, nil
	}
	sockets, err := dbus.Sockets(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", spec.SystemBusEnv, err)
	}
	return sockets, nil
}

// noBus reports whether an error of [dbus.Dial] means that no bus runs.
func noBus(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// watchDirs returns an inotify(7) descriptor that becomes readable when one of the sockets, or a
// directory above it, may have been created. An abstract socket has no file: it cannot be waited
// for.
func watchDirs(sockets []string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	for _, socket := range sockets {
		for watched := ""; filepath.IsAbs(socket) && err == nil; {
			dir := existing(filepath.Dir(socket))
			if dir == watched { // no directory was created below it before it was watched
				break
			}
			watched = dir
			_, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ATTRIB|unix.IN_DELETE_SELF)
			if errors.Is(err, unix.ENOENT) {
				err = nil
			}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// existing returns the nearest existing directory, at or above a path.
func existing(dir string) string {
	for dir != "/" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// sleep returns after a time, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
