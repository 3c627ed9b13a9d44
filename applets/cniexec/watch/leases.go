package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// leasePause is the time between the deletion of a lease and the search for an attachment with its
// address: DEL deletes the lease a little before the entry.
const leasePause = time.Second

// A Lease is a lease of host-local.
type Lease struct {
	Network string
	Addr    netip.Addr
}

// file returns the path of the lease in the directory of its network.
func (l Lease) file(dir string) string { return filepath.Join(dir, l.Addr.String()) }

// watchLeases reports deleted leases of live attachments, until ctx ends. Each DEL deletes some:
// after leasePause it searches the cache for those that are gone.
func (w *Watch) watchLeases(ctx context.Context, dirs *leaseDirs, event func(why string)) {
	var err error
	for dirs != nil && err == nil {
		err = dirs.follow(ctx, w.Leased, event)
		dirs.f.Close()
		if err == nil {
			dirs, err = w.openLeases()
		}
	}
	if ctx.Err() == nil {
		w.Warn("reload: leases are not watched: %v", err)
	}
}

// leaseDirs are the directories of leases, one of each network, watched by inotify(7).
type leaseDirs struct {
	f    *os.File
	dirs map[int32]string // by the number of the watch
}

// These events mean that a directory was created or deleted, that a configuration has changed, or
// that events were lost.
const dirsChanged = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_Q_OVERFLOW

// openLeases watches the existing directories, and those in which others may be created.
func (w *Watch) openLeases() (l *leaseDirs, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	l = &leaseDirs{os.NewFile(uintptr(fd), "inotify"), map[int32]string{}}
	watch := func(path string, mask uint32) (number int) {
		number, addErr := unix.InotifyAddWatch(fd, path, mask|unix.IN_MASK_ADD|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
		if addErr != nil && !errors.Is(addErr, unix.ENOENT) {
			err = errors.Join(err, &os.PathError{Op: "inotify_add_watch", Path: path, Err: addErr})
		}
		return number
	}
	dirs := w.LeaseDirs()
	for _, dir := range dirs { // before their content, so that none is created in between
		watch(existing(filepath.Dir(dir)), unix.IN_CREATE|unix.IN_MOVED_TO)
	}
	watch(existing(w.ConfDir), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE) // other networks, other directories
	for _, dir := range dirs {
		if number := watch(dir, unix.IN_DELETE|unix.IN_MOVED_FROM); number > 0 {
			l.dirs[int32(number)] = dir
		}
	}
	if err != nil {
		l.f.Close()
		return nil, err
	}
	return l, nil
}

// follow reports deleted leases until the directories to watch may have changed.
func (l *leaseDirs) follow(ctx context.Context, leased func(Lease) bool, event func(why string)) error {
	defer context.AfterFunc(ctx, func() { l.f.Close() })()
	gone := map[Lease]string{} // the directory of each
	for changed := false; !changed || len(gone) > 0; {
		deleted, others, err := l.read()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			maps.DeleteFunc(gone, func(lease Lease, dir string) bool {
				_, err := os.Lstat(lease.file(dir))
				return !errors.Is(err, os.ErrNotExist) || !leased(lease)
			})
			reportLeases(gone, event)
			clear(gone)
			_ = l.f.SetReadDeadline(time.Time{})
		case err != nil:
			return err
		case len(deleted) > 0:
			maps.Copy(gone, deleted)
			_ = l.f.SetReadDeadline(time.Now().Add(leasePause))
		}
		changed = changed || others
	}
	return nil
}

// reportLeases reports one event for each network that has lost leases.
func reportLeases(gone map[Lease]string, event func(why string)) {
	networks := map[string][]netip.Addr{}
	for lease := range gone {
		networks[lease.Network] = append(networks[lease.Network], lease.Addr)
	}
	for network, addrs := range networks {
		if len(addrs) == 1 {
			event(fmt.Sprintf("the lease of %s in network %s was deleted", addrs[0], network))
		} else {
			event(fmt.Sprintf("%d leases of network %s were deleted", len(addrs), network))
		}
	}
}

// read waits for events. It returns the deleted leases with their directories, and whether there
// were other events.
func (l *leaseDirs) read() (deleted map[Lease]string, others bool, err error) {
	b := make([]byte, 4096)
	n, err := l.f.Read(b)
	if err != nil {
		return nil, false, err
	}
	deleted = map[Lease]string{}
	for b = b[:n]; len(b) >= unix.SizeofInotifyEvent; {
		number, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		dir := l.dirs[number]
		if a, err := netip.ParseAddr(name); err == nil && dir != "" && mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
			deleted[Lease{filepath.Base(dir), a}] = dir
		}
		others = others || mask&dirsChanged != 0
		b = b[end:]
	}
	return deleted, others, nil
}
