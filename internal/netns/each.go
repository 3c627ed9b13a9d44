package netns

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
)

// Each calls fn with each network namespace that /proc shows, and a path to it: those that are
// mounted in any mount namespace, that a process or a thread is in, or that a process has open. For
// a process that this one may not inspect, such as one with more capabilities, ns is nil and the
// path is its directory in /proc. An error of fn ends Each, unless it is about a process that has
// ended.
//
// hidden is why there may be others, as a sentence; empty: only those that nothing but a socket, or
// a descriptor in one, keeps alive, and those of the host if this process is in a user namespace
// (see [InUserNS]).
func Each(fn func(path string, ns *NS) error) (hidden string, err error) {
	const own = "/proc/thread-self"
	all := &visitor{fn: fn, seen: map[string]bool{}, views: map[string]bool{}, missed: map[string]string{}}
	mounts, err := disk.Mounts(own)
	if err != nil {
		return "", err
	}
	all.views[view(own)] = true
	all.visitMounts(own, "", mounts)
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	// What a process is in comes first: of several paths to a namespace fn gets that of one that uses it.
	for _, visit := range [...]func(process string){all.visitTasks, all.visitFiles} {
		for _, process := range processes {
			if all.err == nil {
				visit(process)
			}
		}
	}
	hidden = all.hidden()
	return hidden, all.err
}

// isNetNS reports whether a name is that of a network namespace in its file system.
func isNetNS(name string) bool { return strings.HasPrefix(name, "net:[") }

// A visitor is the state of one [Each].
type visitor struct {
	fn     func(path string, ns *NS) error
	seen   map[string]bool   // namespaces, by their names in their file system
	views  map[string]bool   // see view; those whose mounts are visited
	missed map[string]string // namespaces that could not be opened, with a process that has them mounted
	err    error             // the first one of fn
}

// visitTasks visits what the threads of a process are in, and have mounted.
func (e *visitor) visitTasks(process string) {
	if !e.visitTask(process) {
		return
	}
	tasks, _ := os.ReadDir(process + "/task") // an error: it has ended
	for _, t := range tasks {
		if len(tasks) > 1 && t.Name() != filepath.Base(process) {
			e.visitTask(filepath.Join(process, "task", t.Name()))
		}
	}
}

// visitFiles visits what a process has open. What may not be listed has been visited by visitTasks.
func (e *visitor) visitFiles(process string) {
	dir := process + "/fd"
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if target, err := os.Readlink(path); err == nil && isNetNS(target) {
			_ = e.visit(path, target) // an error: it was closed
		}
	}
}

// visitTask visits the namespace of a process or a thread, by its directory in /proc, and those
// mounted in its mount namespace. It reports whether this process may inspect it.
func (e *visitor) visitTask(dir string) bool {
	path := dir + "/ns/net"
	name, err := os.Readlink(path)
	if err == nil {
		err = e.visit(path, name)
	}
	denied := errors.Is(err, os.ErrPermission)
	if denied {
		e.call(dir, nil)
	}
	view := view(dir)
	if view != "" && e.views[view] {
		return !denied
	}
	mounts, err := disk.Mounts(dir)
	if err != nil {
		return !denied
	}
	e.visitMounts(dir, dir+"/root", mounts)
	if _, err := os.Lstat(dir); err == nil && view != "" { // else another process of this view is asked
		e.views[view] = true
	}
	return !denied
}

// view returns a name of what a process or a thread sees of the mounts: its mount namespace and its
// root directory. Empty: it has ended, or may not be inspected.
func view(dir string) string {
	ns, err := os.Readlink(dir + "/ns/mnt")
	root, rootErr := os.Readlink(dir + "/root")
	if err != nil || rootErr != nil {
		return ""
	}
	return ns + root
}

// visitMounts visits the namespaces among the mounts of a process or a thread, whose root directory
// is at root.
func (e *visitor) visitMounts(dir, root string, mounts []disk.Mount) {
	for _, m := range mounts {
		if !isNetNS(m.Root) || e.seen[m.Root] {
			continue
		}
		if err := e.visit(root+m.Point, m.Root); err != nil || !e.seen[m.Root] {
			e.missed[m.Root] = dir // something else may be mounted over it
		}
	}
}

// InUserNS reports whether this process is in a user namespace other than the initial one. What it
// cannot enter then belongs to the host, where it has attached nothing: one that it could enter is
// mounted out of its sight only if root of the host has done that.
func InUserNS() bool {
	const initial = "user:[4026531837]" // USER_NS_INIT_INO, include/uapi/linux/nsfs.h
	name, err := os.Readlink("/proc/self/ns/user")
	return err == nil && name != initial
}

// hidden is the first result of [Each]. What could not be opened is tried again: it may have ended, and
// a namespace that was made and mounted meanwhile may have its number.
func (e *visitor) hidden() string {
	for name, dir := range e.missed {
		if e.seen[name] || InUserNS() {
			continue
		}
		mounts, _ := disk.Mounts(dir)
		for _, m := range mounts {
			if m.Root == name && (e.visit(dir+"/root"+m.Point, name) != nil || !e.seen[name]) {
				return fmt.Sprintf("%s is mounted at %s of %s, which this process cannot open", name, m.Point, dir)
			}
		}
	}
	if !showsAll() {
		return "/proc does not show all processes of the host: it is that of another PID namespace, or hides them (hidepid)"
	}
	return ""
}

// showsAll reports whether /proc shows all processes. It asks for kthreadd, which is in the initial
// PID namespace.
func showsAll() bool {
	const flags = 9                  // proc_pid_stat(5)
	const kernelThread = 0x0020_0000 // PF_KTHREAD, include/linux/sched.h
	stat, err := disk.ProcessStat("/proc/2")
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(stat[flags], 10, 32)
	return err == nil && n&kernelThread != 0
}

// visit calls fn with the namespace at a path, once; name is the one that it should have. The error
// is that of opening it.
func (e *visitor) visit(path, name string) error {
	if e.seen[name] {
		return nil
	}
	ns, err := Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	id, err := ns.ID()
	if err != nil {
		return err
	}
	if name = fmt.Sprintf("net:[%d]", id.Ino); !e.seen[name] {
		e.seen[name] = true
		e.call(path, ns)
	}
	return nil
}

// call calls fn, unless an earlier call has failed.
func (e *visitor) call(path string, ns *NS) {
	if e.err != nil {
		return
	}
	err := e.fn(path, ns)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		e.err = fmt.Errorf("network namespace of %s: %w", path, err)
	}
}

// ProcessAddrs returns the addresses in the namespace of a process that this one may not inspect,
// from the files in its directory of /proc: the IPv4 addresses only of links that are up.
func ProcessAddrs(process string) (addrs []netip.Addr, err error) {
	const longest = 16 << 20 // bytes
	v4, err := disk.Read(process+"/net/fib_trie", 0, longest)
	if err != nil {
		return nil, err
	}
	v6, err := disk.Read(process+"/net/if_inet6", 0, longest)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return nil, err
	}
	var last string
	for line := range strings.Lines(string(v4)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "|--":
			last = words[1]
		case len(words) == 3 && words[0] == "/32" && words[2] == "LOCAL":
			if a, err := netip.ParseAddr(last); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	for line := range strings.Lines(string(v6)) {
		if b, err := hex.DecodeString(line[:min(32, len(line))]); err == nil && len(b) == 16 {
			addrs = append(addrs, netip.AddrFrom16([16]byte(b)))
		}
	}
	return addrs, nil
}
