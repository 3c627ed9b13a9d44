package netns

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
)

// Each calls fn with each network namespace of the host and a path to it: mounted namespaces, and
// those that a process is in or has open. For a process that this one may not inspect, such as one
// with more capabilities, ns is nil and the path is its directory in /proc. An error of fn ends
// Each, unless it is about a process that has ended.
func Each(fn func(path string, ns *NS) error) error {
	mounts, err := disk.Mounts()
	if err != nil {
		return err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	all := &visitor{fn: fn, seen: map[ID]bool{}}
	for _, m := range mounts {
		if isNetNS(m.Root) {
			_ = all.visit(m.Point) // an error: something else is mounted over it
		}
	}
	for _, process := range processes {
		if all.err != nil {
			return all.err
		}
		if err := all.visit(process + "/ns/net"); errors.Is(err, os.ErrPermission) {
			all.call(process, nil)
			continue
		}
		dir := process + "/fd"
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if target, err := os.Readlink(path); err == nil && isNetNS(target) {
				_ = all.visit(path) // an error: it was closed
			}
		}
	}
	return all.err
}

// isNetNS reports whether a name is that of a network namespace in its file system.
func isNetNS(name string) bool { return strings.HasPrefix(name, "net:[") }

// A visitor is the state of one [Each].
type visitor struct {
	fn   func(path string, ns *NS) error
	seen map[ID]bool
	err  error // the first one of fn
}

// visit calls fn with the namespace at a path, once. The error is that of opening it.
func (e *visitor) visit(path string) error {
	ns, err := Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	id, err := ns.ID()
	if err == nil && !e.seen[id] {
		e.seen[id] = true
		e.call(path, ns)
	}
	return err
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
