package chain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// settled is how long a broken entry must have been left alone.
const settled = time.Minute

// setAside moves a settled file into another folder.
func setAside(dir, name, to string) error {
	file := filepath.Join(dir, name)
	info, err := os.Lstat(file)
	if err != nil || time.Since(info.ModTime()) < settled {
		return nil
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	if err := os.Rename(file, filepath.Join(to, name)); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// bootID returns what the kernel calls this boot; empty if it does not tell.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// netnsID returns device:inode of a namespace's file; empty if it is none.
// Namespaces are files of nsfs, before Linux 3.19 of proc (statfs(2)).
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
func (e *Entry) sameBoot() bool {
	if e.BootID == "" {
		return true
	}
	now := bootID()
	return now == "" || now == e.BootID
}

// Live reports whether the attachment's network namespace still exists: the
// same one, on the same boot. Paths are used again by others.
func (e *Entry) Live() bool {
	id := netnsID(e.NetNS)
	return e.sameBoot() && id != "" && (e.NetNSID == "" || e.NetNSID == id)
}
