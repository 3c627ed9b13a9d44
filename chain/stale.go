package chain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/boot"
)

// temporary begins the names of files that are not in place yet.
const temporary = ".cnibox-"

// settled is how long a broken entry must have been left alone.
// No writer takes that long for a file; clocks that jump make it wait for the next GC.
const settled = time.Minute

// dropTemporary deletes settled files that a killed process did not get to rename.
func (c *Cache) dropTemporary() error {
	names, _ := fileNames(c.results()) // GC has told already of a folder that cannot be read
	var errs []error
	for _, name := range names {
		file := filepath.Join(c.results(), name)
		if strings.HasPrefix(name, temporary) && old(file) {
			errs = append(errs, remove(file))
		}
	}
	return errors.Join(errs...)
}

// old reports whether a file has been left alone long enough.
// A file that is gone is not old.
func old(file string) bool {
	info, err := os.Lstat(file)
	return err == nil && time.Since(info.ModTime()) >= settled
}

// netnsID returns device:inode of a namespace's file; empty if it is none.
// Namespaces are files of nsfs, before Linux 3.19 of proc (statfs(2)).
// The pair is what a namespace is known by while it exists; once it is gone the kernel
// may give the inode to a new one, so a boot and a path belong to it.
func netnsID(path string) string {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if path == "" || unix.Statfs(path, &fs) != nil || unix.Stat(path, &st) != nil {
		return ""
	}
	if t := int64(fs.Type); t != unix.NSFS_MAGIC && t != unix.PROC_SUPER_MAGIC {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// ownNetNS is netnsID of the namespace that plugins are run in.
func ownNetNS() string { return netnsID("/proc/thread-self/ns/net") }

// sameBoot reports whether the entry is of this boot; what other tools
// write does not say, and counts as such.
// No namespace outlives a boot, and paths in /run are used again by the next one.
func (e *Entry) sameBoot() bool {
	if e.BootID == "" {
		return true
	}
	now := boot.ID()
	return now == "" || now == e.BootID
}

// Live reports whether the attachment's network namespace still exists: the
// same one, on the same boot. Paths are used again by others.
// Entries of other tools have no ID of the namespace, so the path has to do.
func (e *Entry) Live() bool {
	id := netnsID(e.place())
	return e.sameBoot() && id != "" && (e.NetNSID == "" || e.NetNSID == id)
}
