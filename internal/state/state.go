// Package state returns the directory in which each kind of state is stored: below the state directory
// if the caller has one (CNIBOX_STATE, or --state-dir of cni-exec), otherwise the default directory of
// its kind, libcni's or the reference's.
//
// If a default in /var/lib cannot be written, as on a read-only root, the directory of the same name in
// [Run] replaces it, unless state is stored in the default already: new leases must not conflict with
// existing ones. State in Run stays there until the next boot empties it, even if /var/lib becomes
// writable. All verbs decide in the same way, and so find what ADD has stored. Nothing is created here.
// [BootID] identifies the boot.
package state

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The default directories. Those of other records, in /run, are constants of the plugins.
const (
	Cache   = "/var/lib/cni"          // libcni's
	Leases  = "/var/lib/cni/networks" // the reference's
	Flannel = "/var/lib/cni/flannel"  // the reference's
	Ports   = "/run/cnibox/portmap"   // of the owners of host ports

	Run = "/run/cnibox" // replaces /var/lib/cni
)

// Dir returns the directory of state whose default is usual: the one of the same name below the
// state directory, or usual where root is empty.
func Dir(root, usual string) string {
	if root == "" {
		return usual
	}
	return filepath.Join(root, filepath.Base(usual))
}

// CacheDir returns the directory of the runtime's cache, which is the state directory itself.
//
// The notice is one line if the default cannot be written and Run has no state yet; otherwise it is
// empty. The process that creates the directory prints it, so that it is printed once. This holds for
// the other kinds as well.
func CacheDir(root string) (dir, notice string) {
	if root != "" {
		return root, ""
	}
	return find(cache, "/")
}

// LeaseDir returns the directory that has the networks of host-local, as chosen for one of them, whose
// name has been checked. Leases that are kept across boots are not stored in Run.
func LeaseDir(root, network string, kept bool) (dir, notice string) {
	if root != "" || kept {
		return Dir(root, Leases), ""
	}
	return find(leases(network), "/")
}

// FlannelDir returns the directory of flannel's state files.
func FlannelDir(root string) (dir, notice string) {
	if root != "" {
		return Dir(root, Flannel), ""
	}
	return find(flannel, "/")
}

// A kind is a kind of state whose default directory is in /var/lib.
type kind struct {
	name   string                 // of its directory in Cache and in Run
	made   string                 // path in that directory that the first verb creates
	stored string                 // path in that directory of the directory with the state
	counts func(name string) bool // whether a name in stored is that of state
}

var (
	cache   = kind{"", "cnibox/locks", "results", func(name string) bool { return !strings.HasPrefix(name, ".") }} // .NAME: temporary
	flannel = kind{"flannel", "", "", func(string) bool { return true }}
)

func leases(network string) kind {
	return kind{"networks", network, network, func(name string) bool {
		_, err := netip.ParseAddr(name)
		return err == nil
	}}
}

// find returns the directory of a kind; top is "/", except in tests. In the usual case it makes two
// system calls: there is nothing in Run, and the default can be written.
func find(k kind, top string) (dir, notice string) {
	usual, run := filepath.Join(top, Cache, k.name), filepath.Join(top, Run, k.name)
	if exists(filepath.Join(run, k.made)) {
		return run, ""
	}
	err := writable(filepath.Join(usual, k.made))
	switch {
	case !errors.Is(err, unix.EROFS) && !errors.Is(err, os.ErrPermission):
		return usual, "" // ADD reports any other error
	case k.storedIn(usual), writable(filepath.Join(run, k.made)) != nil:
		return usual, ""
	}
	for _, other := range []string{"cnibox", "networks", "flannel"} {
		if exists(filepath.Join(top, Run, other)) {
			return run, ""
		}
	}
	return run, fmt.Sprintf("%s cannot be written (%v): cache and leases are stored in %s until the next boot; CNIBOX_STATE names another directory",
		usual, errors.Unwrap(err), filepath.Join(top, Run))
}

// storedIn reports whether anything is stored in a directory of the kind. One that cannot be
// read may contain it.
func (k kind) storedIn(dir string) bool {
	d, err := os.Open(filepath.Join(dir, k.stored))
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return err != nil || slices.ContainsFunc(names, k.counts)
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// writable returns the error of access(2) for writing to the nearest existing directory at or above a
// path: EROFS, EACCES, or EPERM if it is immutable.
func writable(path string) error {
	for {
		err := unix.Access(path, unix.W_OK)
		if !errors.Is(err, os.ErrNotExist) || path == filepath.Dir(path) {
			if err != nil {
				err = &os.PathError{Op: "access", Path: path, Err: err}
			}
			return err
		}
		path = filepath.Dir(path)
	}
}
